"""A federation from data in memory: arrays, data frames or torch's datasets, and the client of each sample."""

from collections.abc import Callable, Mapping, Sequence, Sized
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from fl_lightning.data.datamodule import FederatedDataModule
from fl_lightning.data.partitions import Fixed
from fl_lightning.data.sources.arrays import Arrays
from fl_lightning.functional.partition.parts import Parts
from fl_lightning.protocol import NetInputs

_LABELS = ("labels", "label", "targets")
_OF_ARRAYS = ("test_inputs", "test_targets", "classes", "owners", "objective")

Clients = Mapping[str, Sequence[int]] | Sequence[Sequence[int]] | ArrayLike


def from_arrays(inputs: NetInputs, targets: Tensor | ArrayLike, clients: Clients, **settings: Any) -> FederatedDataModule:
    """A data module from tensors, NumPy arrays or data frames and index lists, in one line.

    ``from_arrays(x, y, clients=[[0, 1], [2, 3, 4]], cohorts=[[0], [0, 1]], batch_size=None)`` trains client 0 in round 1 and
    both in round 2, on full batches and without validation.

    Args:
        inputs: (n, ...) training inputs, as :class:`Arrays` takes them.
        targets: (n,) class indices, or names of classes.
        clients: sample indices of each client; or these by the clients' names, in the order of clients 0, 1, ...; or (n,) the
            client of every sample, as numbers or names, which are sorted for clients 0, 1, ...
        settings: ``test_inputs``, ``test_targets``, ``classes``, ``owners`` and ``objective`` of :class:`Arrays`, and arguments
            of :class:`FederatedDataModule`. Defaults here: ``val_fraction=0``, every client in every round.

    Raises:
        ValueError: if ``clients`` is none of the three; and as :class:`Arrays`.
    """
    source = Arrays(
        inputs,
        targets,
        **{name: settings.pop(name) for name in _OF_ARRAYS if name in settings},
    )
    parts = _index_lists(clients, np.shape(targets)[0])
    defaults = {"num_clients": len(parts), "clients_per_round": len(parts), "val_fraction": 0.0}
    return FederatedDataModule(source, partition=Fixed(parts), **{**defaults, **settings})


def from_dataset(
    train: TorchDataset,
    clients: Clients,
    test: TorchDataset | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    **settings: Any,
) -> FederatedDataModule:
    """A data module from torch's or Hugging Face's datasets with pairs of an input and its class; all are read into memory.

    Args:
        train: a ``TensorDataset`` of inputs and targets, or any dataset of known length with samples that are such pairs, or
            dicts of the net's arguments and the class, as ``labels`` or ``label``. An input may be a tuple or a dict.
        clients: as of :func:`from_arrays`.
        test: the same for the test set.
        collate: makes one batch of a list of samples, such as Hugging Face's ``DataCollatorWithPadding``; called once with
            all samples, so that texts are padded to the longest. By default samples have one shape.
        settings: ``classes`` and ``objective`` of :class:`Arrays`, and arguments of :class:`FederatedDataModule`.

    Raises:
        ValueError: if a sample is neither a pair of an array and a number nor a dict with both, or inputs differ in shape;
            and as :func:`from_arrays`.
    """
    parts = {"train": train} if test is None else {"train": train, "test": test}
    if collate is not None or _has_several_inputs(train):
        read = _collated(parts, collate or _stack)
    else:
        read = [_stacked(name, part) for name, part in parts.items()]
    if test is not None:
        settings["test_inputs"], settings["test_targets"] = read[1]
    return from_arrays(*read[0], clients, **settings)


def _has_several_inputs(samples: TorchDataset) -> bool:
    """Whether a sample is a dict, or a pair of one or of a tuple and its class."""
    if not isinstance(samples, Sized) or len(samples) == 0:
        return False
    sample = samples[0]
    return isinstance(sample, Mapping) or (isinstance(sample, tuple | list) and isinstance(sample[0], Mapping | tuple))


def _collated(parts: Mapping[str, TorchDataset], collate: Callable[[list[Any]], Any]) -> list[tuple[NetInputs, Tensor]]:
    """Inputs and targets of each dataset, from one batch of all samples."""
    sizes = [len(_sized(name, part)) for name, part in parts.items()]
    rows = [part[i] for part, size in zip(parts.values(), sizes, strict=True) for i in range(size)]
    try:
        batch = collate(rows)
        batch = _of_dict(batch) if isinstance(batch, Mapping) else batch
    except (RuntimeError, ValueError, TypeError, KeyError) as error:  # of any function
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"samples do not make a batch ({reason}): give from_dataset a collate that pads them") from error
    inputs, targets = batch
    parts_of = [slice(*ends) for ends in pairwise([0, *accumulate(sizes)])]
    tensors = {name: torch.as_tensor(part) for name, part in inputs.items()} if isinstance(inputs, dict) else inputs
    return [(tree_map(lambda part, rows=rows: part[rows], tensors), targets[rows]) for rows in parts_of]


def _stack(samples: list[Any]) -> tuple[NetInputs, Tensor | list[Any]]:
    """Inputs and classes of samples that are dicts with a class, or pairs of a dict or a tuple and its class."""
    pairs = [_of_dict(sample) if isinstance(sample, Mapping) else sample for sample in samples]
    of_tuples = isinstance(pairs[0][0], tuple)
    named: list[Mapping[Any, Any]] = [dict(enumerate(given) if of_tuples else given) for given, _ in pairs]
    inputs = {}
    for name in named[0]:
        values = [given[name] for given in named]
        if isinstance(values[0], str):
            raise ValueError(f"{name} is a text: keep the columns that the net takes, as a tokenizer makes them")
        inputs[name] = torch.stack([torch.as_tensor(value) for value in values])
    targets = [target for _, target in pairs]
    return tuple(inputs.values()) if of_tuples else inputs, targets if isinstance(targets[0], str) else torch.as_tensor(targets)


def _of_dict(sample: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """The inputs and the class in a sample, or the inputs and classes in a batch."""
    name = next((name for name in _LABELS if name in sample), None)
    if name is None:
        raise ValueError(f"they have {', '.join(map(str, sample))}, but no class: name it {' or '.join(_LABELS)}")
    return {key: value for key, value in sample.items() if key != name}, sample[name]


def _index_lists(clients: Any, num_samples: int) -> Sequence[Any]:
    if isinstance(clients, Mapping):
        return list(clients.values())
    if len(clients) == 0:
        raise ValueError("clients is empty: give one list of sample indices a client, or the client of every sample")
    if isinstance(clients, Tensor):
        clients = clients.numpy()  # a tensor is iterated as a tuple of one tensor a row
    if np.ndim(next(iter(clients))) > 0:
        return list(clients)
    of_sample = np.asarray(clients)
    if len(of_sample) != num_samples:
        raise ValueError(
            f"clients names the client of {len(of_sample)} samples, there are {num_samples}: name one a sample, or give one "
            "list of sample indices a client"
        )
    if of_sample.dtype.kind not in "iu":
        unnamed = [row for row, name in enumerate(of_sample.tolist()) if not isinstance(name, str)]
        if unnamed:
            raise ValueError(
                f"clients names {of_sample[unnamed[0]]!r} for sample {unnamed[0]}, must be a whole number or a text"
            )
        of_sample = of_sample.astype(str)
    _, client = np.unique(of_sample, return_inverse=True)
    order = np.argsort(client, kind="stable")
    return Parts(order, np.bincount(client))


def _sized(name: str, samples: TorchDataset) -> Sized:
    if not isinstance(samples, Sized):
        raise ValueError(f"{name} is {type(samples).__name__}, whose length is unknown: give a dataset with indices")
    return samples


def _stacked(name: str, samples: TorchDataset) -> tuple[Tensor, Tensor]:
    """Inputs (n, ...) and targets (n,) of a dataset."""
    if isinstance(samples, TensorDataset):
        if len(samples.tensors) != 2:
            raise ValueError(f"{name} is a TensorDataset of {len(samples.tensors)} tensors, must have two: inputs and targets")
        return samples.tensors
    pairs = [_pair(name, i, samples[i]) for i in range(len(_sized(name, samples)))]
    shapes = {tuple(inputs.shape) for inputs, _ in pairs}
    if len(shapes) != 1:
        given = f"inputs of the shapes {sorted(shapes)}, must be of one" if shapes else "no sample"
        raise ValueError(f"{name} has {given}: resize them" if shapes else f"{name} has {given}: give some")
    return torch.stack([inputs for inputs, _ in pairs]), torch.stack([target for _, target in pairs])


def _pair(name: str, i: int, sample: object) -> tuple[Tensor, Tensor]:
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        raise ValueError(
            f"{name}[{i}] is {type(sample).__name__}, must be a pair of an input and its class, or a dict: select the two"
        )
    try:
        inputs, target = map(torch.as_tensor, sample)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name}[{i}] is a pair of {type(sample[0]).__name__} and {type(sample[1]).__name__}, must be of a tensor and a "
            "number: transform the samples, images with torchvision's PILToTensor"
        ) from error
    return inputs, target
