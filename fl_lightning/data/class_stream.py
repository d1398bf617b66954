"""Streams for one global model: classes that arrive task by task, and the same classes from one domain after another."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fl_lightning.checks import check_choice, check_range, check_whole
from fl_lightning.data.federated_split import FederatedSplit
from fl_lightning.data.samples import Dataset, Samples
from fl_lightning.data.shards_of_tasks import ClassStreams, shards_of_tasks
from fl_lightning.data.tasks import Tasks
from fl_lightning.functional.random_streams import numpy_stream

ClassOrder = Literal["drawn", "labels"]
_NUM_TASKS = 5


@dataclass(frozen=True)
class ClientPace:
    """When a task begins, some of the clients that have joined move to it; the others stay with their samples.

    Protocol of GLFC (Dong et al.: Federated Class-Incremental Learning, CVPR 2022, arXiv 2203.11473), whose code moves 90 % of
    30 clients and lets 10 join at each task. A client that stays moves to the newest task once it is drawn, and skips those
    in between.

    Raises:
        ValueError: if a value is out of range.
    """

    moving: float = 1.0  # share of the clients that have joined, in (0, 1]; at least one moves
    joining: int = 0  # new clients at each task after the first

    def __post_init__(self) -> None:
        check_range("data.tasks.moving", self.moving, above=0, at_most=1, hint="1 moves all clients together")
        check_whole("data.tasks.joining", self.joining, at_least=0, hint="0 has all clients there from the start")

    def __str__(self) -> str:
        """Settings that are not defaults, as ``, moving=0.9, joining=10``."""
        moving = f", moving={self.moving}" if self.moving < 1 else ""
        return moving + (f", joining={self.joining}" if self.joining > 0 else "")

    def tasks_of_clients(self, num_clients: int, num_tasks: int, seed: int) -> Tensor:
        """(N, T), the task that each client trains on while each task is the newest; -1 before a client joins.

        Clients are numbered in the order in which they join. The seed and the task determine who moves.

        Raises:
            ValueError: if the first task has no client.
        """
        there = num_clients - self.joining * (num_tasks - 1)
        if there < 1:
            raise ValueError(
                f"data.tasks.joining is {self.joining} at each of {num_tasks - 1} tasks, which leaves none of data.num_clients "
                f"{num_clients} for the first task: lower it, or raise data.num_clients"
            )
        tasks = torch.full((num_clients, num_tasks), -1)
        tasks[:there, 0] = 0
        for task in range(1, num_tasks):
            count = max(int(self.moving * there + 1e-9), 1)
            movers = numpy_stream(seed, task, -1, "clients that move on").choice(there, count, replace=False)
            tasks[:, task] = tasks[:, task - 1]
            tasks[torch.from_numpy(movers), task] = task
            tasks[there : there + self.joining, task] = task
            there += self.joining
        return tasks


class ClassStream(Tasks):
    """Classes arrive in tasks, in one order for all clients, which change tasks together or each at its own pace.

    ``data.partition`` deals the samples of each task to the clients that move to it. The model is tested on the source's test
    samples of all classes seen so far, without the task. Protocol of TARGET (Zhang et
    al., ICCV 2023), MFCL (Babakniya et al., NeurIPS 2023) and LANDER (Tran et al., CVPR 2024); with ``moving`` and ``joining``
    that of GLFC (Dong et al., CVPR 2022).

    Args:
        num_tasks: T, tasks with equally many classes; if T does not divide them, the first tasks have one more. By default 5.
        classes: names of the classes of each task instead, every class of the source once; names can be given as numbers.
        class_order: ``drawn`` by the seed, or ``labels``, that of the source; for ``num_tasks``.
        blurry: b, share of each class's training samples that is dealt to the other tasks at random, in [0, 1). A class counts
            as seen from its own task on; a client can train on samples of it before.
        cumulative: whether clients keep the samples of all their earlier tasks, as in joint training, the upper bound.
        moving: share of the clients that move to a new task, in (0, 1], at least one; the others stay with their samples, and
            can move to a later task.
        joining: new clients at each task after the first, of ``data.num_clients`` in all.

    Raises:
        ValueError: if a value is out of range, a class is named twice, or both ``num_tasks`` and ``classes`` are given.
    """

    global_model = True

    def __init__(
        self,
        num_tasks: int | None = None,
        classes: Sequence[Sequence[str | int]] | None = None,
        class_order: ClassOrder = "drawn",
        blurry: float = 0.0,
        cumulative: bool = False,
        moving: float = 1.0,
        joining: int = 0,
    ) -> None:
        if classes is not None:
            if num_tasks is not None:
                raise ValueError(
                    f"data.tasks.num_tasks is {num_tasks}, and data.tasks.classes has {len(classes)} tasks: give one"
                )
            _check_lists(classes)
        check_whole("data.tasks.num_tasks", _NUM_TASKS if num_tasks is None else num_tasks, at_least=1)
        check_choice("data.tasks.class_order", class_order, ClassOrder)
        check_range("data.tasks.blurry", blurry, at_least=0, below=1, hint="0 keeps tasks apart")
        self.num_tasks, self.classes, self.class_order = num_tasks, classes, class_order
        self.blurry, self.cumulative, self.moving, self.joining = blurry, cumulative, moving, joining
        self._pace = ClientPace(moving, joining)

    def __repr__(self) -> str:
        tasks = len(self.classes) if self.classes is not None else self.num_tasks or _NUM_TASKS
        blurry = f", blurry={self.blurry}" if self.blurry > 0 else ""
        return f"ClassStream({tasks} tasks{blurry}{', cumulative' * self.cumulative}{self._pace})"

    def stream(self, dataset: Dataset, split: FederatedSplit, val_fraction: float) -> ClassStreams:
        tasks = self._given(dataset.classes) if self.classes is not None else self._equal(len(dataset.classes), split.seed)
        task_of = torch.empty(len(dataset.classes), dtype=torch.int64)
        for task, members in enumerate(tasks):
            task_of[members] = task
        dealt = self._dealt(task_of[dataset.train.targets], len(tasks), split.seed)
        arrival = torch.tensor([c for members in tasks for c in members])
        arriving = _relabelled(dataset, arrival)
        of_clients = self._pace.tasks_of_clients(split.num_clients, len(tasks), split.seed)
        some_stay = bool(((of_clients >= 0) & (of_clients < torch.arange(len(tasks)))).any())
        return ClassStreams(
            dataset=arriving,
            names=tuple(", ".join(dataset.classes[c] for c in members) for members in tasks),
            tasks_of_clients=of_clients,
            shards=shards_of_tasks(arriving, dealt, of_clients, split, val_fraction, self.cumulative),
            num_seen=tuple(accumulate(map(len, tasks))),
            test_task=task_of[dataset.test.targets],
            class_task=task_of[arrival],
            cumulative=self.cumulative,
            repeating=some_stay or (len(tasks) > 1 and self.cumulative),
            blurry=self.blurry > 0,
        )

    def _equal(self, num_classes: int, seed: int) -> list[list[int]]:
        """Classes of each task, the same number for each."""
        count = self.num_tasks or _NUM_TASKS
        if count > num_classes:
            raise ValueError(f"data.tasks.num_tasks is {count}, but data.source has {num_classes} classes: lower it")
        order = np.arange(num_classes)
        if self.class_order == "drawn":
            order = numpy_stream(seed, -1, -1, "order of classes").permutation(num_classes)
        return [part.tolist() for part in np.array_split(order, count)]

    def _given(self, names: tuple[str, ...]) -> list[list[int]]:
        """Classes of each task, as given."""
        tasks = [[str(name) for name in task] for task in self.classes or ()]
        named = [name for task in tasks for name in task]
        for name in named:
            if name not in names:
                raise ValueError(f"data.tasks.classes names {name}, which data.source has not: correct it")
        for name in names:
            if name not in named:
                raise ValueError(f"data.tasks.classes leaves out {name} of data.source: give each class a task")
        return [[names.index(name) for name in task] for task in tasks]

    def _dealt(self, task_of: Tensor, num_tasks: int, seed: int) -> Tensor:
        """The task that each training sample is in, from that of its class."""
        if self.blurry == 0:
            return task_of
        if num_tasks == 1:
            raise ValueError(f"data.tasks.blurry is {self.blurry}, but there is one task: set it to 0, or raise num_tasks")
        rng = numpy_stream(seed, -1, -1, "blurry borders")
        moves, shift = rng.random(len(task_of)) < self.blurry, rng.integers(1, num_tasks, len(task_of))
        return (task_of + torch.from_numpy(np.where(moves, shift, 0))) % num_tasks


class DomainStream(Tasks):
    """The same classes in every task, each from another source: the domains of a :class:`~fl_lightning.data.Joined` source.

    The head does not grow, and all classes are seen from the start; the model is tested on the domains seen so far. The class
    ``MNIST/3`` is the class ``3`` of the domain ``MNIST``.

    Args:
        cumulative: whether clients keep the samples of all their earlier domains.
        moving, joining: as in :class:`ClassStream`.

    Raises:
        ValueError: if a value is out of range.
    """

    global_model = True

    def __init__(self, cumulative: bool = False, moving: float = 1.0, joining: int = 0) -> None:
        self.cumulative, self.moving, self.joining = cumulative, moving, joining
        self._pace = ClientPace(moving, joining)

    def __repr__(self) -> str:
        settings = f"{', cumulative' * self.cumulative}{self._pace}"
        return f"DomainStream({settings.removeprefix(', ')})"

    def stream(self, dataset: Dataset, split: FederatedSplit, val_fraction: float) -> ClassStreams:
        sources = dataset.sources
        if sources is None:
            raise ValueError("data.tasks is DomainStream, but data.source is one domain: give a Joined source")
        domains = tuple(dict.fromkeys(sources))
        names = [name.removeprefix(f"{source}/") for name, source in zip(dataset.classes, sources, strict=True)]
        of_domain = {domain: [n for n, source in zip(names, sources, strict=True) if source == domain] for domain in domains}
        classes = of_domain[domains[0]]
        for domain, present in of_domain.items():
            if set(present) != set(classes):
                raise ValueError(
                    f"data.source has other classes in {domain} than in {domains[0]}, but domains share theirs: leave one out"
                )
        label = torch.tensor([classes.index(name) for name in names])
        task_of = torch.tensor([domains.index(source) for source in sources])
        train, test = (replace(part, targets=label[part.targets]) for part in (dataset.train, dataset.test))
        shared = replace(dataset, train=train, test=test, classes=tuple(classes), sources=None)
        of_clients = self._pace.tasks_of_clients(split.num_clients, len(domains), split.seed)
        return ClassStreams(
            dataset=shared,
            names=domains,
            tasks_of_clients=of_clients,
            shards=shards_of_tasks(shared, task_of[dataset.train.targets], of_clients, split, val_fraction, self.cumulative),
            num_seen=(len(classes),) * len(domains),
            test_task=task_of[dataset.test.targets],
            class_task=None,
            cumulative=self.cumulative,
            repeating=False,  # at() gives all classes as the new ones
            blurry=False,
        )


def _relabelled(dataset: Dataset, arrival: Tensor) -> Dataset:
    """The same samples with labels that count classes in the order ``arrival``."""
    label = torch.empty_like(arrival)
    label[arrival] = torch.arange(len(arrival))
    train, test = (Samples(part.inputs, label[part.targets]) for part in (dataset.train, dataset.test))
    order = arrival.tolist()
    sources = None if dataset.sources is None else tuple(dataset.sources[c] for c in order)
    return replace(dataset, train=train, test=test, classes=tuple(dataset.classes[c] for c in order), sources=sources)


def _check_lists(classes: Sequence[Sequence[str | int]]) -> None:
    if len(classes) == 0 or min(map(len, classes)) == 0:
        raise ValueError(f"data.tasks.classes is {[list(task) for task in classes]}, must have a class at least in each task")
    named: set[str] = set()
    for name in (str(name) for task in classes for name in task):
        if name in named:
            raise ValueError(f"data.tasks.classes names {name} twice: give each class to one task")
        named.add(name)
