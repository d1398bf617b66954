"""A federation from data in memory: arrays, data frames or torch's datasets, and the client of each sample."""

from collections.abc import Callable, Mapping, Sequence, Sized
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from fl_lightning.checks import first_line
from fl_lightning.data.datamodule import FederatedDataModule
from fl_lightning.data.mapped_files import empty_rows
from fl_lightning.data.partitions import Fixed
from fl_lightning.data.samples import named_tensors
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
            of :class:`FederatedDataModule` but ``source`` and ``partition``. Defaults here: ``val_fraction=0``, every client
            in every round.

    Raises:
        ValueError: if ``clients`` is none of the three, or ``settings`` have a source or a partition; and as :class:`Arrays`.
    """
    for name in ("source", "partition"):
        if name in settings:
            raise ValueError(
                f"{name} is given, but from_arrays makes it of its arguments: use FederatedDataModule(Arrays(...), ...) instead"
            )
    source = Arrays(inputs, targets, **{name: settings.pop(name) for name in _OF_ARRAYS if name in settings})
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
    """A data module from torch's or Hugging Face's datasets with pairs of inputs and a target, or with dicts of both.

    Every sample is read once, before the first round, since clients are dealt samples by their classes. Inputs that take more
    than half of this machine's memory are in a file in ``$FL_LIGHTNING_CACHE`` while the process lives.

    Args:
        train: a ``TensorDataset`` of inputs and targets, or any dataset of known length with samples that are such pairs, or
            dicts of the net's arguments and the target, as ``labels``, ``label`` or ``targets``. An input may be a tuple or a
            dict, a target a number, a tensor for another objective, or the name of a class.
        clients: as of :func:`from_arrays`.
        test: the same for the test set.
        collate: makes one batch of a list of samples, such as Hugging Face's ``DataCollatorWithPadding``; called once with
            all samples, in memory, so that texts are padded to the longest. It gets 0 for the name of a class. By default
            samples have one shape.
        settings: ``classes``, by default those of a ``ClassLabel`` of Hugging Face, and ``objective`` of :class:`Arrays`, and
            arguments of :class:`FederatedDataModule`.

    Raises:
        OSError: naming the folder, if the disk has no space for the file.
        ValueError: if a sample is neither a pair of inputs and a target nor a dict with both, inputs differ in shape or type,
            or ``collate`` fails; and as :func:`from_arrays`.
    """
    parts = {"train": train} if test is None else {"train": train, "test": test}
    read = [_read(name, part) for name, part in parts.items()] if collate is None else _collated(parts, collate)
    if test is not None:
        settings["test_inputs"], settings["test_targets"] = read[1]
    if "objective" not in settings and (names := _class_names(train)) is not None:
        settings.setdefault("classes", names)
    return from_arrays(*read[0], clients, **settings)


def _collated(parts: Mapping[str, TorchDataset], collate: Callable[[list[Any]], Any]) -> list[tuple[NetInputs, Any]]:
    """Inputs and targets of each dataset, from one batch of all samples."""
    sizes = [len(_sized(name, part)) for name, part in parts.items()]
    rows = [part[i] for part, size in zip(parts.values(), sizes, strict=True) for i in range(size)]
    names = [name for row in rows if isinstance(name := _target(row), str)]
    try:
        batch = collate([_numbered(row) for row in rows] if names else rows)
        inputs, targets = _of_dict(batch) if isinstance(batch, Mapping) else batch
    except Exception as error:  # of any function
        first = rows[0] if rows and isinstance(rows[0], Mapping) else {}
        texts = [key for key, part in first.items() if key not in _LABELS and isinstance(part, str)]
        cure = f"leave out {texts[0]!r}, which is a text" if texts else "give from_dataset one that pads samples to one shape"
        raise ValueError(f"collate does not make a batch of all samples ({first_line(error)}): {cure}") from error
    if names:
        other = next((position for position, row in enumerate(rows) if not isinstance(_target(row), str)), None)
        if other is not None:
            given = _target(rows[other])
            raise ValueError(
                f"{len(names)} targets are names, but that of sample {other} is {given!r}: give all one kind, or leave it out"
            )
        targets = names
    tensors = {name: torch.as_tensor(part) for name, part in inputs.items()} if isinstance(inputs, dict) else inputs
    lengths = {len(part) if np.ndim(part) > 0 else 0 for part in (*tree_leaves(tensors), targets)}
    if lengths != {len(rows)}:
        raise ValueError(
            f"collate makes {min(lengths)} rows of {len(rows)} samples: give from_dataset one that makes a row of each sample"
        )
    parts_of = [slice(*ends) for ends in pairwise([0, *accumulate(sizes)])]
    return [(tree_map(lambda part, rows=rows: part[rows], tensors), targets[rows]) for rows in parts_of]


def _class_names(samples: Any) -> list[str] | None:
    """The names that a dataset of Hugging Face has for the numbers of its classes."""
    features = getattr(samples, "features", None)
    target = next((features[name] for name in _LABELS if name in features), None) if isinstance(features, Mapping) else None
    return getattr(target, "names", None)


def _target(row: Any) -> Any:
    """The target of a sample for a collate; None if it has none of a known name."""
    if isinstance(row, Mapping):
        return next((row[name] for name in _LABELS if name in row), None)
    return row[-1] if isinstance(row, tuple | list) and row else None


def _numbered(row: Any) -> Any:
    """A sample with 0 for the name of its class: a collate makes tensors of numbers only."""
    if isinstance(row, Mapping):
        return {key: 0 if key in _LABELS else part for key, part in row.items()}
    return row._replace(**{row._fields[-1]: 0}) if hasattr(row, "_fields") else type(row)((*row[:-1], 0))


def _of_dict(sample: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """The inputs and the class in a sample, or the inputs and classes in a batch."""
    name = next((name for name in _LABELS if name in sample), None)
    if name is None:
        raise ValueError(f"no class among {', '.join(map(str, sample))}: name it {' or '.join(_LABELS)}")
    return {key: value for key, value in sample.items() if key != name}, sample[name]


def _index_lists(clients: Any, num_samples: int) -> Sequence[Any]:
    if isinstance(clients, Mapping):
        return list(clients.values())
    if isinstance(clients, str):
        raise ValueError(
            f"clients is {clients!r}, must name the client of every sample: give the column itself, such as train[{clients!r}]"
        )
    if isinstance(clients, int):
        raise ValueError(
            f"clients is {clients}, must list the samples of each client: let a partition deal them, "
            f"FederatedDataModule(Arrays(inputs, targets), num_clients={clients})"
        )
    if len(clients) == 0:
        raise ValueError("clients is empty: give one list of sample indices a client, or the client of every sample")
    if isinstance(clients, Tensor):
        clients = clients.cpu().numpy()  # a tensor is iterated as a tuple of one tensor a row
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
    if isinstance(samples, Mapping):
        raise ValueError(
            f"{name} is {type(samples).__name__}, which has several datasets, {', '.join(map(str, samples))}: give one of them"
        )
    if not isinstance(samples, Sized):
        raise ValueError(f"{name} is {type(samples).__name__}, whose length is unknown: give a dataset with indices")
    return samples


def _read(name: str, samples: TorchDataset) -> tuple[NetInputs, Tensor | list[str]]:
    """Inputs (n, ...) and targets of a dataset, sample by sample: no more than one is held besides them."""
    if isinstance(samples, TensorDataset):
        if len(samples.tensors) != 2:
            raise ValueError(f"{name} is a TensorDataset of {len(samples.tensors)} tensors, must have two: inputs and targets")
        return samples.tensors
    count = len(_sized(name, samples))
    if count == 0:
        raise ValueError(f"{name} has no sample: give some")
    rows, form, targets = {}, {}, torch.empty(0)
    names: list[str] = []
    for i in range(count):
        inputs, target = _pair(name, i, samples[i])
        if i == 0:
            form = _form(inputs)
            targets = torch.empty(count, *getattr(target, "shape", ()), dtype=getattr(target, "dtype", torch.bool))
            rows = {key: empty_rows((count, *part.shape), part.dtype) for key, part in named_tensors(inputs).items()}
        elif (given := _form(inputs)) != form:
            raise ValueError(
                f"{name}[{i}] has an input of {_told(given)}, {name}[0] of {_told(form)}: give all one shape and type, or "
                "from_dataset a collate that pads them"
            )
        for key, part in named_tensors(inputs).items():
            rows[key][i] = part
        if isinstance(target, str):
            names.append(target)
        elif target.shape != targets.shape[1:]:
            shapes = tuple(target.shape), tuple(targets.shape[1:])
            raise ValueError(f"{name}[{i}] has a target of shape {shapes[0]}, {name}[0] of {shapes[1]}: give all one shape")
        else:
            # Not in a list: small tensors between those of inputs would keep the allocator from reusing the memory of these.
            targets = targets.to(torch.promote_types(targets.dtype, target.dtype))
            targets[i] = target
    if len(names) not in (0, count):
        raise ValueError(f"{name} has {len(names)} targets that are names, and {count - len(names)} numbers: give all one kind")
    stored: NetInputs = rows[""] if isinstance(inputs, Tensor) else rows if isinstance(inputs, dict) else tuple(rows.values())
    return stored, names or targets


def _kind(part: object) -> str:
    """The type of a part of a sample; of a dict with those of its columns."""
    if not isinstance(part, Mapping):
        return type(part).__name__
    return f"dict ({', '.join(f'{key}: {type(value).__name__}' for key, value in part.items())})"


def _form(inputs: NetInputs) -> dict[Any, tuple[torch.Size, torch.dtype]]:
    """Shape and type of each tensor of a sample."""
    return {key: (part.shape, part.dtype) for key, part in named_tensors(inputs).items()}


def _told(form: dict[Any, tuple[torch.Size, torch.dtype]]) -> str:
    return ", ".join(f"{key} {tuple(shape)} {dtype}".strip() for key, (shape, dtype) in form.items())


def _pair(name: str, i: int, sample: object) -> tuple[NetInputs, Any]:
    """The input of a sample, a tensor or a dict or tuple of tensors, and its class, a number or a name."""
    if isinstance(sample, Mapping):
        try:
            sample = _of_dict(sample)
        except ValueError as error:
            raise ValueError(f"{name}[{i}] has {error}") from error
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        raise ValueError(
            f"{name}[{i}] is {type(sample).__name__}, must be a pair of an input and its class, or a dict: select the two"
        )
    given, target = sample
    if isinstance(given, Mapping) and len(given) == 1:
        (column,) = given.values()
        if isinstance(column, Tensor) and column.dtype == torch.uint8:  # an image by itself, as a net takes it
            given = column
    texts = [key for key, part in given.items() if isinstance(part, str)] if isinstance(given, Mapping) else []
    if texts:
        raise ValueError(f"{name}[{i}] has the text {texts[0]}: keep the columns that the net takes, as a tokenizer makes them")
    try:
        if isinstance(given, Mapping):
            inputs: NetInputs = {key: torch.as_tensor(part) for key, part in given.items()}
        else:
            inputs = tuple(map(torch.as_tensor, given)) if isinstance(given, tuple) else torch.as_tensor(given)
        return inputs, target if isinstance(target, str) else torch.as_tensor(target)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name}[{i}] is a pair of {_kind(given)} and {_kind(target)}, must be of a tensor and a number: transform the "
            "samples, images with torchvision's PILToTensor or a dataset's with_format('torch')"
        ) from error
