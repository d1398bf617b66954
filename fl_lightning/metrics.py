"""Metrics that accumulate over batches and over processes."""

from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.checks import check_range
from fl_lightning.functional import average_accuracy, average_forgetting, backward_transfer
from fl_lightning.objectives import Objective, SingleLabel


class Scores(NamedTuple):
    """Result of :class:`ClassScores`."""

    accuracy: Tensor  # scalar, NaN without samples; with another objective its score
    loss: Tensor  # scalar, mean cross entropy, or the objective's loss
    class_accuracy: Tensor  # (C,), NaN for classes without samples; of the objective's units


class PersonalScores(NamedTuple):
    """Scores of N clients' personal models, each on its client's samples."""

    accuracy: Tensor  # (N,), NaN for clients without samples
    loss: Tensor  # (N,), mean cross entropy, NaN in the same way
    samples: Tensor  # (N,)

    @classmethod
    def of_counts(cls, counts: Tensor) -> "PersonalScores":
        """From (N, 5): samples, summed weights and scores of their entries, number of entries and summed losses."""
        samples, weights, scores, entries, losses = counts.unbind(dim=1)
        return cls(scores / weights, losses / entries, samples)


class ClassScores(Metric):
    """Accuracy, mean cross entropy and accuracy per class, computed from counts: exact over any split of the samples.

    Args:
        num_classes: C, or the number of units of another objective.
        objective: scores the outputs.
    """

    full_state_update = False
    correct: Tensor
    total: Tensor
    loss: Tensor

    def __init__(self, num_classes: int, objective: Objective = SingleLabel()) -> None:
        super().__init__()
        self.objective = objective
        for name in ("correct", "total"):
            self.add_state(name, torch.zeros(num_classes, dtype=torch.float64), dist_reduce_fx="sum")
        for name in ("loss", "entries"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, targets: Tensor) -> None:
        """Count a batch of logits (B, C) and targets (B,), or those of the objective; B may be 0."""
        entries, losses = self.objective.entries(logits, targets), self.objective.losses(logits, targets)
        self.correct.index_add_(0, entries.unit, entries.score)
        self.total.index_add_(0, entries.unit, entries.weights)
        self.loss += losses.sum()
        self.entries += len(losses)

    def compute(self) -> Scores:
        return Scores(self.correct.sum() / self.total.sum(), self.loss / self.entries, self.correct / self.total)


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
