"""Task streams: every client learns its own sequence of tasks, each with a few of the classes."""

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torch.utils._pytree import tree_map

from fl_lightning.checks import check_choice, check_range
from fl_lightning.data.federated_split import FederatedSplit
from fl_lightning.data.mapped_files import empty_rows
from fl_lightning.data.samples import Dataset, Samples
from fl_lightning.data.shards import ClientShards, shards_of_parts
from fl_lightning.data.shards_of_tasks import ClassStreams
from fl_lightning.data.sources.superclasses import CIFAR100_TABLE, read_superclasses
from fl_lightning.functional.random_streams import numpy_stream

TasksBy = Literal["classes", "sources", "superclasses"]


@dataclass(frozen=True)
class Streams:
    """The sequences of N clients with T tasks each.

    Samples are numbered over the source's training and test samples, in that order, and their labels are positions among the
    classes of their task. Row ``client * T + position`` of ``shards`` and ``test`` is a client's task at that position.
    """

    dataset: Dataset  # all samples as training samples, with the classes "0", "1", ... of a task
    names: tuple[str, ...]  # of all tasks
    order: Tensor  # (N, T), each client's task at each position
    shards: ClientShards  # training and validation samples
    test: tuple[Tensor, ...]  # test samples of each row

    @property
    def num_tasks(self) -> int:
        """T, tasks of each client."""
        return self.order.shape[1]

    def indices(self, client: int, position: int, part: Literal["validation", "test"]) -> Tensor:
        """A client's validation or test samples of the task at a position of its sequence."""
        row = client * self.num_tasks + position
        return self.test[row] if part == "test" else self.shards.validation_indices(row)


class Tasks(ABC):
    """The rule that turns the classes of a source into a sequence of tasks: ``data.tasks``."""

    global_model: bool
    """Whether the global model learns all tasks, one after another; otherwise each client learns its own sequence."""

    @abstractmethod
    def stream(self, dataset: Dataset, split: FederatedSplit, val_fraction: float) -> Streams | ClassStreams:
        """Every client's samples of every task; a function of only the data and the seed.

        Args:
            dataset: the loaded dataset.
            split: the clients, the partition and the seed.
            val_fraction: share of a client's samples for validation.

        Raises:
            ValueError: if the data do not give these tasks.
        """


class TaskStream(Tasks):
    """Cuts the classes of a source into tasks, and each task's samples into disjoint parts, one per client.

    Each client learns ``tasks_per_client`` of the tasks in an order drawn for it. Training and test samples of the source are
    pooled and dealt to clients evenly and at random, and a client's part is split into training, test and validation samples.
    In the FedWeIT paper (Yoon et al., ICML 2021, Section 5), Overlapped-CIFAR-100 is ``by: superclasses``, and NonIID-50 is
    ``by: sources``, where each task belongs to one client as a whole.

    Args:
        by: rule for the classes of a task: ``classes``, ``classes_per_task`` at a time in an order drawn by the seed;
            ``sources``, the same, but each task from one of :class:`~fl_lightning.data.Joined` sources (any other source counts
            as one), and no two clients learn the same task; or ``superclasses``, the classes of each superclass.
        classes_per_task: classes of a task, at least 2; remaining classes are in no task. Not for ``by: superclasses``.
        table: CSV file with the columns ``class,superclass``; by default that of CIFAR-100. For ``by: superclasses``.
        tasks_per_client: length of a sequence; None for all tasks, or for as many as there are for each client.
        tasks_per_source: number of tasks of some sources, at least 1 each; the last one can have fewer classes. All other
            sources give as many complete tasks as they have. For ``by: sources``.
        client_tasks: each client's tasks in order, lists of one length, instead of a draw. ``MNIST_0`` is the first task of
            ``MNIST``. The classes of each source are shuffled by ``random.Random(seed)``, as in data/generator.py of the
            FedWeIT authors (github.com/wyjeong/FedWeIT). For ``by: sources``.
        test_fraction: share of a client's samples of a task for tests, above 0.
        val_fraction: share for validation, which stops and slows training; above 0.

    Raises:
        ValueError: if a value is out of range.
    """

    global_model = False

    def __init__(
        self,
        by: TasksBy = "classes",
        classes_per_task: int = 5,
        table: str | None = None,
        tasks_per_client: int | None = None,
        tasks_per_source: Mapping[str, int] | None = None,
        client_tasks: Sequence[list[str]] | None = None,
        test_fraction: float = 0.2,
        val_fraction: float = 0.1,
    ) -> None:
        check_choice("data.tasks.by", by, TasksBy)
        if table is not None and by != "superclasses":
            raise ValueError(
                f"data.tasks.table is {table}, but data.tasks.by is {by}: set it to superclasses, or leave the table out"
            )
        check_range("data.tasks.classes_per_task", classes_per_task, at_least=2, hint="one class leaves no choice")
        if tasks_per_client is not None:
            check_range("data.tasks.tasks_per_client", tasks_per_client, at_least=1, hint="null for all tasks")
        tasks_per_source, client_tasks = tasks_per_source or {}, client_tasks or []
        for key, value in (("tasks_per_source", tasks_per_source), ("client_tasks", client_tasks)):
            if value and by != "sources":
                raise ValueError(
                    f"data.tasks.{key} is {value}, but data.tasks.by is {by}: set it to sources, or leave {key} out"
                )
        for source, count in tasks_per_source.items():
            check_range(f"data.tasks.tasks_per_source.{source}", count, at_least=1)
        if client_tasks:
            _check_client_tasks(client_tasks, tasks_per_client)
        check_range("data.tasks.test_fraction", test_fraction, above=0, below=1, hint="the paper uses 0.2")
        check_range("data.tasks.val_fraction", val_fraction, above=0, below=1, hint="the paper uses 0.1")
        if test_fraction + val_fraction >= 1:
            raise ValueError(
                f"data.tasks.test_fraction is {test_fraction} and data.tasks.val_fraction is {val_fraction}, must be below 1 "
                "together: the rest is trained on"
            )
        self.by, self.classes_per_task, self.tasks_per_client = by, classes_per_task, tasks_per_client
        self.tasks_per_source, self.client_tasks = tasks_per_source, client_tasks
        self.table = Path(table) if table is not None else CIFAR100_TABLE
        self.test_fraction, self.val_fraction = test_fraction, val_fraction

    def __repr__(self) -> str:
        return f"TaskStream(by={self.by}, tasks_per_client={self.tasks_per_client})"

    def stream(self, dataset: Dataset, split: FederatedSplit, val_fraction: float) -> Streams:
        return self.partition(dataset, split.num_clients, split.seed)

    def partition(self, dataset: Dataset, num_clients: int, seed: int) -> Streams:
        """Each client's tasks and samples; a function of only the dataset and the seed.

        Raises:
            ValueError: if there are fewer tasks than a client must learn, a task has one class, or a client is left without
                training, validation or test samples of one.
        """
        tasks = self._tasks(dataset, seed)
        order = self._order([*tasks], num_clients, len(dataset.classes), seed)
        labels, names = torch.cat([dataset.train.targets, dataset.test.targets]), tuple(tasks)
        task_of, label_in_task = torch.full((len(dataset.classes),), -1), torch.zeros(len(dataset.classes), dtype=torch.int64)
        for task, members in enumerate(tasks.values()):
            task_of[members], label_in_task[members] = task, torch.arange(len(members))
        num_parts = 1 if self._deals_whole_tasks else num_clients
        parts = [self._parts(task, task_of[labels] == task, num_parts, seed) for task in range(len(tasks))]
        rows = [parts[task][client % num_parts] for client in range(num_clients) for task in order[client].tolist()]
        sizes = self._sizes(rows, order.flatten().tolist(), names, order.shape[1])
        split = [row.split([*counts]) for row, counts in zip(rows, sizes, strict=True)]
        train, test, validation = ([part[kind] for part in split] for kind in range(3))
        classes = tuple(map(str, range(max(map(len, tasks.values())))))
        inputs = tree_map(_joined, dataset.train.inputs, dataset.test.inputs)
        pooled = Samples(inputs, label_in_task[labels])
        nothing = pooled.none()
        shards = shards_of_parts(train, validation, pooled.targets, len(classes))
        return Streams(Dataset(pooled, nothing, classes), names, order, shards, tuple(test))

    @property
    def _deals_whole_tasks(self) -> bool:
        """Whether no two clients learn the same task; otherwise every task's samples are dealt to all clients."""
        return self.by == "sources"

    def _order(self, names: list[str], num_clients: int, num_classes: int, seed: int) -> Tensor:
        """(N, T), each client's task at each position."""
        if self.client_tasks:
            return self._given_order(names, num_clients)
        whole, num_tasks = self._deals_whole_tasks, len(names)
        for_each = num_tasks // num_clients if whole else num_tasks
        count = for_each if self.tasks_per_client is None else self.tasks_per_client
        if not 1 <= count <= for_each:
            each, cure = (f", {for_each} for each of {num_clients} clients", " or data.num_clients") if whole else ("", "")
            cure += "" if self.by == "superclasses" else ", or data.tasks.classes_per_task"
            raise ValueError(
                f"data.tasks.tasks_per_client is {count}, but the {num_classes} classes of data.source make {num_tasks} "
                f"tasks{each}: lower it{cure}"
            )
        if whole:
            return _permutation(seed, -1, num_tasks)[: num_clients * count].reshape(num_clients, count)
        return torch.stack([_permutation(seed, client, num_tasks)[:count] for client in range(num_clients)])

    def _given_order(self, names: list[str], num_clients: int) -> Tensor:
        """The same from ``client_tasks``, of each list the first ``tasks_per_client``."""
        given = self.client_tasks
        if len(given) != num_clients:
            raise ValueError(
                f"data.tasks.client_tasks has {len(given)} lists, but data.num_clients is {num_clients}: give one list each"
            )
        if unknown := [name for tasks in given for name in tasks if name not in names]:
            source = unknown[0].rpartition("_")[0] or unknown[0]
            count = sum(name.rpartition("_")[0] == source for name in names)
            raise ValueError(
                f"data.tasks.client_tasks has {unknown[0]}, but data.source has {count} tasks of {source}, numbered from 0: "
                "correct the name, raise data.tasks.tasks_per_source, or add the source"
            )
        return torch.tensor([[names.index(name) for name in tasks] for tasks in given])[:, : self.tasks_per_client]

    def _tasks(self, dataset: Dataset, seed: int) -> dict[str, list[int]]:
        """The classes of each task by its name."""
        classes = dataset.classes
        if self.by == "superclasses":
            of_class = read_superclasses(self.table, classes, "data.tasks.table")
            tasks = {name: [c for c, superclass in enumerate(of_class) if superclass == name] for name in sorted(set(of_class))}
        else:
            drawn = numpy_stream(seed, -1, -1, "classes of tasks").permutation(len(classes)).tolist()
            sets = {"": drawn}
            if self.by == "sources" and dataset.sources is not None:
                sets = {name: [c for c in drawn if dataset.sources[c] == name] for name in dict.fromkeys(dataset.sources)}
            if absent := ", ".join(name for name in self.tasks_per_source if name not in sets):
                rank_zero_only(print)(f"Data: no tasks of {absent}: in data.tasks.tasks_per_source, but no source here")
            if self.client_tasks:
                for members in sets.values():
                    members.sort()
                    random.Random(seed).shuffle(members)
            tasks = {}
            for source, members in sets.items():
                for index, group in enumerate(map(sorted, self._groups(source, members))):
                    name = f"{source}_{index}" if self.client_tasks else ", ".join(classes[c] for c in group)
                    tasks[name] = group
        if not tasks:
            raise ValueError(
                f"data.tasks.classes_per_task is {self.classes_per_task}, but data.source has {len(classes)} classes: lower it"
            )
        for name, members in tasks.items():
            if len(members) < 2:
                raise ValueError(f"data.tasks has the task {name} with one class, must have at least two: one leaves no choice")
        return tasks

    def _groups(self, source: str, classes: Sequence[int]) -> list[Sequence[int]]:
        """The classes of one source, a group per task."""
        size = self.classes_per_task
        count = self.tasks_per_source.get(source, len(classes) // size)
        groups = [classes[first : first + size] for first in range(0, len(classes), size)]
        if count > len(groups):
            raise ValueError(
                f"data.tasks.tasks_per_source is {count} for {source}, whose {len(classes)} classes make {len(groups)} tasks "
                f"of {size} at most: lower it"
            )
        return groups[:count]

    def _parts(self, task: int, belongs: Tensor, num_clients: int, seed: int) -> Sequence[Tensor]:
        """A task's samples in ``num_clients`` parts of equal size; the remainder is in no part."""
        held = belongs.nonzero().flatten()
        drawn = held[torch.from_numpy(numpy_stream(seed, task, -1, "samples of a task").permutation(len(held)))]
        size = len(held) // num_clients
        return drawn[: size * num_clients].reshape(num_clients, size).unbind()

    def _sizes(self, rows: Sequence[Tensor], tasks: Sequence[int], names: Sequence[str], num_positions: int) -> np.ndarray:
        """Training, test and validation samples of each row, (rows, 3)."""
        held = np.array([len(row) for row in rows])
        test, validation = (np.floor(held * part + 1e-9).astype(int) for part in (self.test_fraction, self.val_fraction))
        sizes = np.stack([held - test - validation, test, validation], axis=1)
        if sizes.min() < 1:
            row = int(sizes.min(axis=1).argmin())
            training, for_test, for_validation = sizes[row]
            fewer = "" if self._deals_whole_tasks else "lower data.num_clients or "
            raise ValueError(
                f"data.tasks leaves client {row // num_positions} with {held[row]} samples of the task {names[tasks[row]]}: "
                f"{training} for training, {for_test} by test_fraction {self.test_fraction} and {for_validation} by "
                f"val_fraction {self.val_fraction}, must be at least one each: {fewer}raise the fraction that leaves none"
            )
        return sizes


def _check_client_tasks(given: Sequence[list[str]], tasks_per_client: int | None) -> None:
    """Refuses lists of several lengths or that are too short, and a task that occurs twice."""
    lengths = sorted({len(tasks) for tasks in given})
    if len(lengths) > 1 or lengths[0] < (tasks_per_client or 1):
        raise ValueError(
            f"data.tasks.client_tasks has lists of {' and '.join(map(str, lengths))} tasks, must be of one length, at least "
            f"{tasks_per_client or 1}: name as many tasks for each client, or change data.tasks.tasks_per_client"
        )
    counts = Counter(name for tasks in given for name in tasks)
    if doubled := [name for name, count in counts.items() if count > 1]:
        raise ValueError(f"data.tasks.client_tasks has {doubled[0]} {counts[doubled[0]]} times: a task belongs to one client")


def _permutation(seed: int, client: int, count: int) -> Tensor:
    return torch.from_numpy(numpy_stream(seed, -1, client, "order of tasks").permutation(count))


def _joined(train: Tensor, test: Tensor) -> Tensor:
    """The rows of both, in a file if memory does not hold them."""
    rows = empty_rows((len(train) + len(test), *train.shape[1:]), torch.promote_types(train.dtype, test.dtype))
    return torch.cat([train, test], out=rows)
