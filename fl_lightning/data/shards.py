"""The training, validation and test samples of each client, for any number of clients in a few flat tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fl_lightning.checks import check_memory


@dataclass(frozen=True)
class ClientShards:
    """Samples of N clients. Client k trains on ``train[train_start[k]:train_start[k + 1]]``; other parts have this form too."""

    train: Tensor  # indices into the training set, client by client
    train_start: Tensor  # (N + 1,)
    validation: Tensor
    validation_start: Tensor  # (N + 1,)
    test: Tensor  # also of the training set, held out of clients' samples
    test_start: Tensor  # (N + 1,)
    train_label_counts: Tensor  # (N, C)
    label_counts: Tensor  # (N, C), training and validation samples

    def train_indices(self, client: int) -> Tensor:
        """Indices of a client's training samples, (n_k,)."""
        return self.train[self.train_start[client] : self.train_start[client + 1]]

    def validation_indices(self, client: int) -> Tensor:
        """Indices of a client's validation samples."""
        return self.validation[self.validation_start[client] : self.validation_start[client + 1]]


def split_clients(
    parts: list[Tensor],
    labels: Tensor,
    num_classes: int,
    val_fraction: float,
    rng: np.random.Generator,
    test_fraction: float = 0.0,
) -> ClientShards:
    """Split each client's samples at random: of n ``n - int((1 - val_fraction) * n)`` for validation, as many for testing by
    ``test_fraction``, the others for training.

    Args:
        parts: each client's indices into ``labels``.
        labels: (n,) class of every sample.
        num_classes: C.
        val_fraction: in [0, 1); 0 for no validation.
        test_fraction: in [0, 1), for tests; both together below 1.

    Raises:
        ValueError: if a client is left without a training sample, or without a requested validation or test sample.
    """
    held = torch.cat(parts).numpy()
    sizes = np.array([len(part) for part in parts])
    owner = np.repeat(np.arange(len(parts)), sizes)
    # One sort for all clients: the time depends on samples, not on clients.
    shuffled = held[np.lexsort((rng.random(len(held)), owner))]
    position = np.arange(len(held)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    fractions = {"validation": val_fraction, "test": test_fraction}
    held_out = {kind: sizes - np.floor((1 - part) * sizes + 1e-9).astype(np.int64) for kind, part in fractions.items()}
    train_sizes = sizes - held_out["validation"] - held_out["test"]
    _check_sizes(sizes, {"training": train_sizes, **held_out}, val_fraction, test_fraction)
    is_train, is_test = position < train_sizes[owner], position >= (sizes - held_out["test"])[owner]
    masks = (is_train, ~is_train & ~is_test, is_test)
    counts = (train_sizes, *held_out.values())
    held_by = [(torch.from_numpy(shuffled[mask]), count) for mask, count in zip(masks, counts, strict=True)]
    return _shards(held_by, labels, num_classes)


def shards_of_parts(train: Sequence[Tensor], validation: Sequence[Tensor], labels: Tensor, num_classes: int) -> ClientShards:
    """Shards from each client's training and validation samples.

    Args:
        train, validation: indices of each client into ``labels``.
        labels: (n,) class of every sample.
        num_classes: C.
    """
    held = [(torch.cat([*parts]), np.array([len(part) for part in parts])) for parts in (train, validation)]
    return _shards([*held, (torch.empty(0, dtype=torch.int64), np.zeros(len(train), dtype=np.int64))], labels, num_classes)


def _shards(held: Sequence[tuple[Tensor, np.ndarray]], labels: Tensor, num_classes: int) -> ClientShards:
    """Shards from all clients' training, validation and test indices, client by client, and the clients' numbers of them."""
    (train, train_sizes), (validation, validation_sizes), (test, test_sizes) = held
    train_counts = _count_labels(labels[train], train_sizes, num_classes)
    validation_counts = _count_labels(labels[validation], validation_sizes, num_classes)
    return ClientShards(
        train=train,
        train_start=starts_of(train_sizes),
        validation=validation,
        validation_start=starts_of(validation_sizes),
        test=test,
        test_start=starts_of(test_sizes),
        train_label_counts=train_counts,
        label_counts=train_counts + validation_counts,
    )


def _check_sizes(sizes: np.ndarray, parts: dict[str, np.ndarray], val_fraction: float, test_fraction: float) -> None:
    if sizes.min() < 1:
        raise ValueError(
            f"data.partition gives client {int(sizes.argmin())} no sample: lower data.num_clients or choose another"
        )
    fractions = {"data.val_fraction": val_fraction, "data.test_fraction": test_fraction}
    keys = [key for key, fraction in fractions.items() if fraction > 0] or ["data.val_fraction"]
    asked = {"training": True, "validation": val_fraction > 0, "test": test_fraction > 0}
    for kind, counts in parts.items():
        if asked[kind] and counts.min() < 1:
            client = int(counts.argmin())
            given = " and ".join(f"{key} is {fractions[key]}" for key in keys)
            raise ValueError(
                f"{given}, which leaves client {client} of {sizes[client]} samples without a {kind} sample: lower "
                f"data.num_clients, choose a more even data.partition or set {' or '.join(keys)} to 0"
            )


def _count_labels(labels: Tensor, sizes: np.ndarray, num_classes: int) -> Tensor:
    counted = f"data.num_clients is {len(sizes)} and data.source has {num_classes} classes: the label counts of all clients"
    check_memory(8 * len(sizes) * num_classes, counted, "lower data.num_clients")
    owner = np.repeat(np.arange(len(sizes)), sizes)
    counts = np.bincount(owner * num_classes + labels.numpy(), minlength=len(sizes) * num_classes)
    return torch.from_numpy(counts.reshape(len(sizes), num_classes))


def starts_of(sizes: np.ndarray) -> Tensor:
    """(N + 1,), starts of N adjacent parts of these sizes, and the end of the last one."""
    return torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]))
