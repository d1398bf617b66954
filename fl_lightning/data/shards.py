"""Which samples each client trains on and which it validates on, for any number of clients in a few flat tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fl_lightning.data.memory import check_memory


@dataclass(frozen=True)
class ClientShards:
    """Samples of N clients. Client k trains on ``train[train_start[k]:train_start[k + 1]]``, likewise for validation."""

    train: Tensor  # indices into the training set, client by client
    train_start: Tensor  # (N + 1,)
    validation: Tensor
    validation_start: Tensor  # (N + 1,)
    train_label_counts: Tensor  # (N, C)
    label_counts: Tensor  # (N, C), training and validation samples

    def train_indices(self, client: int) -> Tensor:
        """Indices of a client's training samples, (n_k,)."""
        return self.train[self.train_start[client] : self.train_start[client + 1]]

    def validation_indices(self, client: int) -> Tensor:
        """Indices of a client's validation samples."""
        return self.validation[self.validation_start[client] : self.validation_start[client + 1]]


def split_clients(
    parts: list[Tensor], labels: Tensor, num_classes: int, val_fraction: float, rng: np.random.Generator
) -> ClientShards:
    """Split each client's samples at random: ``int((1 - val_fraction) * n)`` for training, the rest for validation.

    Args:
        parts: each client's indices into ``labels``.
        labels: (n,) class of every sample.
        num_classes: C.
        val_fraction: in [0, 1); with 0 nothing is validated on.

    Raises:
        ValueError: if a client is left without a training sample, or without a validation sample where some are asked for.
    """
    held = torch.cat(parts).numpy()
    sizes = np.array([len(part) for part in parts])
    owner = np.repeat(np.arange(len(parts)), sizes)
    # One sort for all clients: 100,000 clients take no longer than 100 with as many samples.
    shuffled = held[np.lexsort((rng.random(len(held)), owner))]
    position = np.arange(len(held)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    train_sizes = np.floor((1 - val_fraction) * sizes + 1e-9).astype(np.int64)
    _check_sizes(sizes, train_sizes, val_fraction)
    is_train = position < train_sizes[owner]
    train, validation = (torch.from_numpy(shuffled[chosen]) for chosen in (is_train, ~is_train))
    return _shards(train, train_sizes, validation, sizes - train_sizes, labels, num_classes)


def shards_of_parts(train: Sequence[Tensor], validation: Sequence[Tensor], labels: Tensor, num_classes: int) -> ClientShards:
    """Shards of which each client's training and validation samples are known.

    Args:
        train, validation: of each client, indices into ``labels``.
        labels: (n,) class of every sample.
        num_classes: C.
    """
    train_sizes, validation_sizes = (np.array([len(part) for part in parts]) for parts in (train, validation))
    return _shards(torch.cat([*train]), train_sizes, torch.cat([*validation]), validation_sizes, labels, num_classes)


def _shards(
    train: Tensor, train_sizes: np.ndarray, validation: Tensor, validation_sizes: np.ndarray, labels: Tensor, num_classes: int
) -> ClientShards:
    """From all clients' indices, client by client, and how many are whose."""
    train_counts = _count_labels(labels[train], train_sizes, num_classes)
    validation_counts = _count_labels(labels[validation], validation_sizes, num_classes)
    return ClientShards(
        train=train,
        train_start=_starts(train_sizes),
        validation=validation,
        validation_start=_starts(validation_sizes),
        train_label_counts=train_counts,
        label_counts=train_counts + validation_counts,
    )


def _check_sizes(sizes: np.ndarray, train_sizes: np.ndarray, val_fraction: float) -> None:
    if sizes.min() < 1:
        raise ValueError(
            f"data.partition gives client {int(sizes.argmin())} no sample: lower data.num_clients or choose another"
        )
    for kind, counts in (("training", train_sizes), ("validation", sizes - train_sizes)):
        if kind == "validation" and val_fraction == 0:
            continue
        if counts.min() < 1:
            client = int(counts.argmin())
            raise ValueError(
                f"data.val_fraction is {val_fraction}, which leaves client {client} of {sizes[client]} samples without a "
                f"{kind} sample: lower data.num_clients, choose a more even data.partition or set data.val_fraction to 0"
            )


def _count_labels(labels: Tensor, sizes: np.ndarray, num_classes: int) -> Tensor:
    counted = f"data.num_clients is {len(sizes)} and data.source has {num_classes} classes: the label counts of all clients"
    check_memory(8 * len(sizes) * num_classes, counted, "lower data.num_clients")
    owner = np.repeat(np.arange(len(sizes)), sizes)
    counts = np.bincount(owner * num_classes + labels.numpy(), minlength=len(sizes) * num_classes)
    return torch.from_numpy(counts.reshape(len(sizes), num_classes))


def _starts(sizes: np.ndarray) -> Tensor:
    return torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]))
