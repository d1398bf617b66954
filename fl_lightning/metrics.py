"""Metrics that accumulate over batches and over processes."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric


class Scores(NamedTuple):
    """Result of :class:`ClassScores`."""

    accuracy: Tensor  # scalar, NaN without samples
    loss: Tensor  # scalar, mean cross entropy
    class_accuracy: Tensor  # (C,), NaN for classes without samples


class ClassScores(Metric):
    """Accuracy, mean cross entropy and accuracy per class, from counts alone: exact over any split of the samples.

    Args:
        num_classes: C.
    """

    full_state_update = False

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
    hits = (logits.argmax(dim=-1) == targets).double()
    one_hot = F.one_hot(owner, num_owners).double()
    return hits @ one_hot / one_hot.sum(dim=0)
