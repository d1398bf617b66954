"""Metrics that accumulate over batches and over processes."""

from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

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
