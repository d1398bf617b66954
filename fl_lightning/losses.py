"""What a client minimises: the ``loss=`` argument of every method.

A loss is called as ``loss(logits, target, label_counts)`` with shapes (B, C), (B,) and (C,), and gives one value a sample,
(B,). The formulas stand in :mod:`fl_lightning.functional`.
"""

from abc import ABC, abstractmethod

import torch.nn.functional as F
from torch import Tensor

from fl_lightning.functional import (
    masked_cross_entropy,
    reweighted_softmax_cross_entropy,
    truncated_cross_entropy,
)

__all__ = ["CrossEntropy", "Loss", "MaskedCrossEntropy", "ReweightedSoftmax", "TruncatedCrossEntropy"]


class Loss(ABC):
    """One value a sample from logits, targets and the client's label counts."""

    @abstractmethod
    def __call__(self, logits: Tensor, target: Tensor, label_counts: Tensor) -> Tensor:
        """Losses of shape (B,) for logits (B, C), targets (B,) and label counts (C,)."""

    def __repr__(self) -> str:
        return type(self).__name__


class CrossEntropy(Loss):
    """Ordinary cross entropy; the label counts are not used."""

    def __call__(self, logits: Tensor, target: Tensor, label_counts: Tensor) -> Tensor:
        return F.cross_entropy(logits, target, reduction="none")


class TruncatedCrossEntropy(Loss):
    """TCE: :func:`fl_lightning.functional.truncated_cross_entropy`."""

    def __call__(self, logits: Tensor, target: Tensor, label_counts: Tensor) -> Tensor:
        return truncated_cross_entropy(logits, target, label_counts, reduction="none")


class ReweightedSoftmax(Loss):
    """WSM: :func:`fl_lightning.functional.reweighted_softmax_cross_entropy`."""

    def __call__(self, logits: Tensor, target: Tensor, label_counts: Tensor) -> Tensor:
        return reweighted_softmax_cross_entropy(logits, target, label_counts, reduction="none")


class MaskedCrossEntropy(Loss):
    """HeteroFL's zero-filled form: :func:`fl_lightning.functional.masked_cross_entropy`."""

    def __call__(self, logits: Tensor, target: Tensor, label_counts: Tensor) -> Tensor:
        return masked_cross_entropy(logits, target, label_counts, reduction="none")
