"""Metrics that accumulate over batches and over processes."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.checks import check_range
from fl_lightning.functional import average_accuracy, average_forgetting, backward_transfer


class Scores(NamedTuple):
    """Result of :class:`ClassScores`."""

    accuracy: Tensor  # scalar, NaN without samples
    loss: Tensor  # scalar, mean cross entropy
    class_accuracy: Tensor  # (C,), NaN for classes without samples


class PersonalScores(NamedTuple):
    """Scores of N clients' personal models, each on its client's samples."""

    accuracy: Tensor  # (N,), NaN for clients without samples
    loss: Tensor  # (N,), mean cross entropy, NaN in the same way
    samples: Tensor  # (N,)

    @classmethod
    def of_counts(cls, counts: Tensor) -> "PersonalScores":
        """From (N, 3): samples, hits and summed losses."""
        samples, hits, losses = counts.unbind(dim=1)
        return cls(hits / samples, losses / samples, samples)


class ClassScores(Metric):
    """Accuracy, mean cross entropy and accuracy per class, computed from counts: exact over any split of the samples.

    Args:
        num_classes: C.
    """

    full_state_update = False
    correct: Tensor
    total: Tensor
    loss: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        for name in ("correct", "total"):
            self.add_state(name, torch.zeros(num_classes, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("loss", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, targets: Tensor) -> None:
        """Count a batch of logits (B, C) and targets (B,); B may be 0."""
        hits = (logits.argmax(dim=-1) == targets).double()
        self.correct.index_add_(0, targets, hits)
        self.total.index_add_(0, targets, torch.ones_like(hits))
        self.loss += F.cross_entropy(logits.double(), targets, reduction="sum")

    def compute(self) -> Scores:
        total = self.total.sum()
        return Scores(self.correct.sum() / total, self.loss / total, self.correct / self.total)


class LearnedTasks(NamedTuple):
    """Result of :class:`TaskScores`; the scalars are NaN as long as an accuracy that they need is missing."""

    # (T, T), [t, i] after task t on task i, NaN where nothing was evaluated; for T = 1 torchmetrics makes it a scalar.
    accuracy: Tensor
    average_accuracy: Tensor
    average_forgetting: Tensor
    backward_transfer: Tensor


class TaskScores(Metric):
    """Scores of tasks that are learned in turn, computed from counts: exact over any split of the samples.

    The scalars are those of :mod:`fl_lightning.functional.tasks`.

    Args:
        num_tasks: T.

    Raises:
        ValueError: if ``num_tasks`` is below 1; in ``update``, if a task is not one of them.
    """

    full_state_update = False
    correct: Tensor
    total: Tensor

    def __init__(self, num_tasks: int) -> None:
        super().__init__()
        check_range("num_tasks", num_tasks, at_least=1)
        self.num_tasks = num_tasks
        for name in ("correct", "total"):
            self.add_state(name, torch.zeros(num_tasks, num_tasks, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, task_just_learned: int, evaluated_task: int, logits: Tensor, targets: Tensor) -> None:
        """Count a batch of logits (B, C) and targets (B,) of one task, tasks counted from 0; B may be 0."""
        for name, task in (("task_just_learned", task_just_learned), ("evaluated_task", evaluated_task)):
            check_range(name, task, at_least=0, at_most=self.num_tasks - 1, hint="tasks are counted from 0")
        self.correct[task_just_learned, evaluated_task] += (logits.argmax(dim=-1) == targets).sum()
        self.total[task_just_learned, evaluated_task] += len(targets)

    def compute(self) -> LearnedTasks:
        accuracy = self.correct / self.total
        scores = (score(accuracy) for score in (average_accuracy, average_forgetting, backward_transfer))
        return LearnedTasks(accuracy, *scores)


def class_accuracy(logits: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """Accuracy of each class for one or more models.

    Args:
        logits: (..., n, C).
        targets: (n,).
        num_classes: C.

    Returns:
        (..., C); NaN for classes without samples.
    """
    return accuracy_by_owner(logits, targets, targets, num_classes)


def accuracy_by_owner(logits: Tensor, targets: Tensor, owner: Tensor, num_owners: int) -> Tensor:
    """Accuracy on each owner's samples for one or more models, from one pass over all samples.

    Args:
        logits: (..., n, C).
        targets: (n,).
        owner: (n,) which owner each sample belongs to.
        num_owners: K.

    Returns:
        (..., K); NaN for owners without samples.
    """
    return _mean_by_owner((logits.argmax(dim=-1) == targets).double(), owner, num_owners)


def loss_by_owner(logits: Tensor, targets: Tensor, owner: Tensor, num_owners: int) -> Tensor:
    """Mean cross entropy on each owner's samples for one or more models, from one pass over all samples.

    Args:
        logits: (..., n, C).
        targets: (n,).
        owner: (n,) which owner each sample belongs to.
        num_owners: K.

    Returns:
        (..., K), in nats, float64; NaN for owners without samples.
    """
    # Model by model: a float64 copy of all logits would be twice their size.
    models = logits.reshape(logits.shape[:-2].numel(), *logits.shape[-2:])
    losses = torch.stack([F.cross_entropy(model.double(), targets, reduction="none") for model in models])
    return _mean_by_owner(losses, owner, num_owners).reshape(*logits.shape[:-2], num_owners)


def _mean_by_owner(values: Tensor, owner: Tensor, num_owners: int) -> Tensor:
    """From float64 values (..., n) to (..., K)."""
    one_hot = F.one_hot(owner, num_owners).double()
    return values @ one_hot / one_hot.sum(dim=0)
