"""The clients' samples of each task, if one global model learns tasks one after another."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fl_lightning.data.federated_split import FederatedSplit
from fl_lightning.data.partitions import Fixed, Natural
from fl_lightning.data.samples import Dataset
from fl_lightning.data.shards import ClientShards, shards_of_parts, split_clients, values_at
from fl_lightning.functional.random_streams import numpy_stream


class ArrivedClasses(NamedTuple):
    """The classes of a task and of earlier ones."""

    num_old: int  # o, seen before the task
    new: slice  # columns of its new classes; of all if none is new
    num_seen: int


@dataclass(frozen=True)
class ClassStreams:
    """T tasks of N clients. Labels are global, in order of arrival: the classes seen by a position are a prefix of all.

    Row ``client * T + position`` of ``shards`` has a client's samples while the task at that position is the newest; it is
    empty before the client joins.
    """

    dataset: Dataset
    names: tuple[str, ...]  # of the tasks
    tasks_of_clients: Tensor  # (N, T), a client's task at each position; -1 before it joins
    shards: ClientShards  # training and validation samples
    num_seen: tuple[int, ...]  # classes seen up to and including each position, C_1 to C_T
    test_task: Tensor  # (n_test,), position of a test sample's task
    class_task: Tensor | None  # (C,), position of a class's task; None if every task has all classes
    cumulative: bool  # whether clients keep the samples of earlier tasks, which come first
    repeating: bool  # whether clients train again on classes of earlier tasks, other than across blurry borders
    blurry: bool  # whether tasks have samples of each other's classes

    @property
    def num_tasks(self) -> int:
        """T."""
        return len(self.names)

    def num_there(self, position: int) -> int:
        """Number of clients that have joined; these are the first ones."""
        return int((self.tasks_of_clients[:, position] >= 0).sum())

    def stays(self, client: int, position: int) -> int:
        """Number of later positions at which a client has the same task."""
        tasks = self.tasks_of_clients[client]
        return int((tasks[position + 1 :] == tasks[position]).sum())

    def at(self, position: int) -> ArrivedClasses:
        """The classes that have arrived by a position."""
        before, seen = self.num_seen[position - 1] if position > 0 else 0, self.num_seen[position]
        return ArrivedClasses(before, slice(before if before < seen else 0, seen), seen)

    def leaked_classes(self, client: int, position: int) -> list[int]:
        """Classes of later tasks of which a client has met training samples by a position, as with blurry borders."""
        row, seen = client * self.num_tasks, self.num_seen[position]
        return self.shards.train_label_counts[row : row + position + 1, seen:].sum(dim=0).nonzero().flatten().add(seen).tolist()

    def classes_held(self, client: int, position: int) -> list[int]:
        """Classes of which a client has training samples at a position."""
        return self.shards.train_label_counts[client * self.num_tasks + position].nonzero().flatten().tolist()

    def positions_of_classes(self) -> list[tuple[int, int] | None]:
        """The first and the last position at which clients have samples of each class; None if they never have any."""
        counts = self.shards.label_counts
        held = counts.reshape(-1, self.num_tasks, counts.shape[1]).sum(dim=0) > 0
        positions = [held[:, label].nonzero().flatten().tolist() for label in range(counts.shape[1])]
        return [(found[0], found[-1]) if found else None for found in positions]

    def most_samples(self) -> int:
        """Number of training samples of the largest client in all of its tasks, each counted once."""
        sizes = self.shards.train_start.diff()
        owner = torch.repeat_interleave(torch.arange(len(sizes)) // self.num_tasks, sizes)
        held = (owner * len(self.dataset.train) + self.shards.train).unique()  # with some streams a sample is in several rows
        return int((held // len(self.dataset.train)).bincount().max())

    def most_classes(self) -> int:
        """Largest number of classes of which a client has training samples in all of its tasks."""
        counts = self.shards.train_label_counts
        return int((counts.reshape(-1, self.num_tasks, counts.shape[1]).sum(dim=1) > 0).sum(dim=1).max())


def shards_of_tasks(
    dataset: Dataset, task_of: Tensor, tasks_of_clients: Tensor, split: FederatedSplit, val_fraction: float, cumulative: bool
) -> ClientShards:
    """Shards by row ``client * T + position``, with each task's samples partitioned among the clients that move to it.

    Args:
        task_of: (n,), the task of each training sample.
        tasks_of_clients: (N, T), each client's task at each position; -1 before it joins.
        cumulative: whether clients keep the samples of all their earlier tasks.

    Raises:
        ValueError: if the partition has fixed samples or natural clients, or leaves a client without samples of a task.
    """
    if isinstance(split.partition, Fixed | Natural):
        raise ValueError(
            f"data.partition is {split.partition!r}, but each task of data.tasks has a partition of its own: choose another, "
            "such as Dirichlet"
        )
    targets, num_classes, num_tasks = dataset.train.targets, len(dataset.classes), tasks_of_clients.shape[1]
    holders = [(tasks_of_clients[:, task] == task).nonzero().flatten().tolist() for task in range(num_tasks)]
    each = [
        _shards_of_task(dataset, (task_of == task).nonzero().flatten(), split, len(clients), val_fraction, task - 1)
        for task, clients in enumerate(holders)
    ]
    place = [{client: row for row, client in enumerate(clients)} for clients in holders]
    nothing = torch.empty(0, dtype=torch.int64)

    def rows(indices: Callable[[ClientShards, int], Tensor]) -> Iterator[Tensor]:
        for client, positions in enumerate(tasks_of_clients.tolist()):
            for last, newest in enumerate(positions):
                present = sorted({*positions[: last + 1]} if cumulative else {newest})
                yield torch.cat([nothing, *(indices(each[task], place[task][client]) for task in present if task >= 0)])

    return shards_of_parts([*rows(ClientShards.train_indices)], [*rows(ClientShards.validation_indices)], targets, num_classes)


def _shards_of_task(
    dataset: Dataset, held: Tensor, split: FederatedSplit, num_clients: int, val_fraction: float, key: int
) -> ClientShards:
    """Shards of one task. ``key`` is -1 for the first task, whose draws are those of a federation without tasks."""
    targets = dataset.train.targets
    labels = targets[held].unique(return_inverse=True)[1]  # partitions take labels from 0 on
    rng = numpy_stream(split.seed, key, -1, "validation split")
    try:
        parts = replace(split, num_clients=num_clients).deal(labels, None, key)
        return split_clients(values_at(held, parts), targets, len(dataset.classes), val_fraction, rng)
    except ValueError as error:
        if num_clients == split.num_clients:
            raise
        raise ValueError(
            f"data.num_clients is {split.num_clients}, of whom {num_clients} share task {key + 2} of data.tasks, and only for "
            f"these {error}"
        ) from error
