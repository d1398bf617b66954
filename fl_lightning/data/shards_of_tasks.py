"""Who holds which samples of which task, where one global model learns tasks that come one after another."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

from fl_lightning.data.federated_split import FederatedSplit
from fl_lightning.data.partitions import Fixed, Natural
from fl_lightning.data.samples import Dataset
from fl_lightning.data.shards import ClientShards, shards_of_parts, split_clients
from fl_lightning.random_streams import numpy_stream


@dataclass(frozen=True)
class ClassStreams:
    """T tasks of N clients. Labels are global, in order of arrival: the classes seen by a position are a prefix of all.

    Row ``client * T + position`` of ``shards`` is what a client trains on at that position.
    """

    dataset: Dataset
    names: tuple[str, ...]  # of the tasks
    shards: ClientShards  # training and validation samples
    num_seen: tuple[int, ...]  # classes seen up to and including each position, C_1 to C_T
    test_task: Tensor  # (n_test,), position of the task that a test sample is of
    test_from: Tensor  # (n_test,), position from which on its class counts as seen
    class_task: Tensor | None  # (C,), position of the task that a class is of; None where every task has all of them
    mixed: bool  # whether a task has samples of earlier tasks' classes too

    @property
    def num_tasks(self) -> int:
        """T."""
        return len(self.names)

    def first_new(self, position: int) -> int:
        """The first of the classes that are new at a position; 0 where none is, as with tasks of the same classes."""
        before = self.num_seen[position - 1] if position > 0 else 0
        return before if before < self.num_seen[position] else 0

    def digest(self) -> str:
        """A short name of who learns which samples in which order."""
        parts = (self.dataset.train.targets, self.shards.train, self.shards.train_start, self.shards.validation, self.test_task)
        return blake2b(b"".join(part.numpy().tobytes() for part in parts), digest_size=8).hexdigest()


def shards_of_tasks(
    targets: Tensor, num_classes: int, tasks: Sequence[Tensor], split: FederatedSplit, val_fraction: float, cumulative: bool
) -> ClientShards:
    """Each task's samples partitioned anew among all clients; of row ``client * T + position``.

    Args:
        targets: (n,), classes of all training samples.
        num_classes: C.
        tasks: indices of each task's training samples.
        split: the clients, the partition and the seed.
        val_fraction: of a client's samples of a task, for validation.
        cumulative: whether clients keep the samples of all earlier tasks.

    Raises:
        ValueError: if the partition names samples or clients, or leaves a client without samples of a task.
    """
    if isinstance(split.partition, Fixed | Natural):
        raise ValueError(
            f"data.partition is {split.partition!r}, but each task of data.tasks is partitioned anew: choose another, such as "
            "Dirichlet"
        )
    each = [_shards_of_task(targets, num_classes, held, split, val_fraction, key) for key, held in enumerate(tasks, start=-1)]
    rows = [(client, position) for client in range(split.num_clients) for position in range(len(tasks))]
    train, validation = (
        [torch.cat([indices(each[p], client) for p in range(0 if cumulative else last, last + 1)]) for client, last in rows]
        for indices in (ClientShards.train_indices, ClientShards.validation_indices)
    )
    return shards_of_parts(train, validation, targets, num_classes)


def _shards_of_task(
    targets: Tensor, num_classes: int, held: Tensor, split: FederatedSplit, val_fraction: float, key: int
) -> ClientShards:
    """``key`` is -1 for the first task, whose draws are those of a federation without tasks."""
    labels = targets[held].unique(return_inverse=True)[1]  # partitions take labels from 0 on
    parts = split.deal(labels, None, key)
    rng = numpy_stream(split.seed, key, -1, "validation split")
    return split_clients([held[part] for part in parts], targets, num_classes, val_fraction, rng)
