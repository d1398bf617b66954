"""Losses that clients minimise: the ``loss=`` argument of every method.

A loss is called as ``loss(logits, target, label_counts)`` with shapes (B, C), (B,) and (C,), and returns one value per sample,
(B,). The formulas are in :mod:`fl_lightning.functional`.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_lightning.checks import check_each, check_list, check_range, counted
from fl_lightning.functional import (
    balanced_class_weights,
    calibrated_cross_entropy,
    masked_cross_entropy,
    reweighted_softmax_cross_entropy,
    truncated_cross_entropy,
    weighted_cross_entropy,
)
from fl_lightning.functional.loss_reductions import at_least_float32

__all__ = [
    "CalibratedCrossEntropy",
    "CrossEntropy",
    "Loss",
    "MaskedCrossEntropy",
    "ReweightedSoftmax",
    "TokenCrossEntropy",
    "TruncatedCrossEntropy",
    "WeightedCrossEntropy",
]

IGNORED = -100  # the target of places that do not count, as torch has it
_OfClasses = nn.CrossEntropyLoss | nn.NLLLoss  # on logits, or logarithms of probabilities, and class indices
_OfNumbers = nn.BCEWithLogitsLoss | nn.MSELoss | nn.L1Loss | nn.SmoothL1Loss | nn.HuberLoss  # on outputs and numbers
TorchLosses = _OfClasses | _OfNumbers


class Loss(ABC):
    """One value per sample from logits, targets and the client's label counts."""

    uses_label_counts: bool = True
    """Whether the loss uses the label counts. If so, an update can reveal them."""

    needs_classes: bool = False
    """Whether targets must be class indices."""

    @abstractmethod
    def __call__(self, logits: Tensor, target: Tensor, label_counts: Tensor) -> Tensor:
        """Losses of shape (B,) for logits (B, C), targets (B,) and label counts (C,)."""

    def __repr__(self) -> str:
        return type(self).__name__


class CrossEntropy(Loss):
    """Cross entropy with a softmax over all classes, the default; the label counts are not used."""

    uses_label_counts = False

    def __call__(self, logits: Tensor, target: Tensor, label_counts: Tensor) -> Tensor:
        return F.cross_entropy(at_least_float32(logits), target, reduction="none")


class TruncatedCrossEntropy(Loss):
    """TCE: the softmax runs over only the classes that the client holds.

    G. Legate, L. Caccia, E. Belilovsky: Reducing Forgetting in Federated Learning with Truncated Cross-Entropy. The formula is
    in :func:`fl_lightning.functional.truncated_cross_entropy`.
    """

    needs_classes = True

    def __call__(self, logits: Tensor, target: Tensor, label_counts: Tensor) -> Tensor:
        return truncated_cross_entropy(logits, target, label_counts, reduction="none")


class ReweightedSoftmax(Loss):
    """WSM: in the softmax, each class counts by its share of the client's samples.

    G. Legate: Re-Weighted Softmax Cross-Entropy to Control Forgetting in Federated Learning. MSc thesis 2022. The formula is in
    :func:`fl_lightning.functional.reweighted_softmax_cross_entropy`.
    """

    needs_classes = True

    def __call__(self, logits: Tensor, target: Tensor, label_counts: Tensor) -> Tensor:
        return reweighted_softmax_cross_entropy(logits, target, label_counts, reduction="none")


class MaskedCrossEntropy(Loss):
    """HeteroFL's loss: logits of classes that the client does not hold are replaced by 0.

    E. Diao, J. Ding, V. Tarokh: HeteroFL. ICLR 2021. arXiv 2010.01264. The formula is in
    :func:`fl_lightning.functional.masked_cross_entropy`.
    """

    needs_classes = True

    def __call__(self, logits: Tensor, target: Tensor, label_counts: Tensor) -> Tensor:
        return masked_cross_entropy(logits, target, label_counts, reduction="none")


class CalibratedCrossEntropy(Loss):
    """FedLC: the fewer samples of a class a client has, the larger the margin that it must keep.

    J. Zhang et al.: Federated Learning with Label Distribution Skew via Logits Calibration. ICML 2022. arXiv 2209.00189.
    The formula is in :func:`fl_lightning.functional.calibrated_cross_entropy`.

    Args:
        tau: scale of the margins, above 0.

    Raises:
        ValueError: if ``tau`` is not above 0.
    """

    needs_classes = True

    def __init__(self, tau: float = 1.0) -> None:
        check_range("model.loss.tau", tau, above=0, below=math.inf, hint="the smaller, the closer to TruncatedCrossEntropy")
        self.tau = tau

    def __call__(self, logits: Tensor, target: Tensor, label_counts: Tensor) -> Tensor:
        return calibrated_cross_entropy(logits, target, label_counts, self.tau, reduction="none")

    def __repr__(self) -> str:
        return f"CalibratedCrossEntropy(tau={self.tau})"


class WeightedCrossEntropy(Loss):
    """Each sample counts by the weight of its class, by default such that a client's classes count equally.

    The formula is in :func:`fl_lightning.functional.weighted_cross_entropy`.

    Args:
        class_weights: of each class, at least 0, the same at all clients; null: each client weights the classes that it holds
            equally, :func:`fl_lightning.functional.balanced_class_weights`.

    Raises:
        ValueError: if a weight is negative, or none above 0; before round 1, if there are fewer or more weights than classes.
    """

    needs_classes = True

    def __init__(self, class_weights: Sequence[float] | None = None) -> None:
        check_list("model.loss.class_weights", class_weights)
        weights = () if class_weights is None else tuple(class_weights)
        check_each("model.loss.class_weights", weights, at_least=0, below=math.inf)
        if class_weights is not None and not any(weights):
            raise ValueError(
                f"model.loss.class_weights is {[*weights]}, with which no sample counts: give one above 0, or null"
            )
        self.class_weights = None if class_weights is None else tuple(map(float, weights))
        self.uses_label_counts = class_weights is None

    def __call__(self, logits: Tensor, target: Tensor, label_counts: Tensor) -> Tensor:
        self.check_classes(logits.shape[-1])
        if self.class_weights is None:
            weights = balanced_class_weights(label_counts)
        else:
            # Filled on the device: no CUDA graph can record a copy from the host.
            weights = torch.stack([torch.full((), weight, device=logits.device) for weight in self.class_weights])
        return weighted_cross_entropy(logits, target, weights, reduction="none")

    def check_classes(self, num_classes: int) -> None:
        """Refuse weights of another number of classes.

        Raises:
            ValueError: naming both numbers.
        """
        if self.class_weights is not None and len(self.class_weights) != num_classes:
            raise ValueError(
                f"model.loss.class_weights has {counted(len(self.class_weights), 'weight')}, there are {num_classes} classes: "
                "give one a class"
            )

    def __repr__(self) -> str:
        given = "" if self.class_weights is None else f"class_weights={list(self.class_weights)}"
        return f"WeightedCrossEntropy({given})"


class TokenCrossEntropy(Loss):
    """Cross entropy of the next token, the mean over the tokens of a text. Texts of one length weigh all tokens equally.

    Takes logits (B, T, V), and as targets the first T columns of (B, T or more); a target of -100 does not count.
    """

    uses_label_counts = False

    def __call__(self, logits: Tensor, target: Tensor, label_counts: Tensor) -> Tensor:
        tokens = target[:, : logits.shape[1]]
        logits = at_least_float32(logits)
        losses = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), ignore_index=IGNORED, reduction="none")
        return losses.reshape(tokens.shape).sum(dim=1) / (tokens != IGNORED).sum(dim=1).clamp_min(1)


class TorchLoss(Loss):
    """A loss of torch, such as ``torch.nn.CrossEntropyLoss(label_smoothing=0.1)``, with one value per sample; no label counts.

    Args:
        loss: with its plain mean over samples, without class weights and without an ignored label. ``CrossEntropyLoss`` and
            ``NLLLoss`` take classes; ``BCEWithLogitsLoss`` takes labels, and ``MSELoss``, ``L1Loss``, ``SmoothL1Loss`` and
            ``HuberLoss`` values (:mod:`fl_lightning.objectives`), with the mean over the outputs of a sample.

    Raises:
        ValueError: if it is any other.
    """

    uses_label_counts = False

    def __init__(self, loss: TorchLosses) -> None:
        if isinstance(loss, type):
            raise ValueError(f"model.loss is the class {loss.__name__}, must be an object of it: write {loss.__name__}()")
        if not isinstance(loss, TorchLosses):
            raise ValueError(
                f"model.loss is {loss!r}, must be of fl_lightning.losses, or one of torch for classes, labels or values, such "
                "as torch.nn.CrossEntropyLoss, BCEWithLogitsLoss or MSELoss: derive another from fl_lightning.losses.Loss"
            )
        derive = "or derive a loss from fl_lightning.losses.Loss"
        weighted = "and give fl_lightning.losses.WeightedCrossEntropy, which multiplies each sample's value"
        for name, plain, cure in (
            ("weight", None, weighted if isinstance(loss, _OfClasses) else derive),
            ("pos_weight", None, derive),
            ("reduction", "mean", "and choose model.optimizer.lr for the mean"),
            ("ignore_index", IGNORED, "and take the samples of that label out of the data"),
        ):
            if getattr(loss, name, plain) != plain:
                raise ValueError(
                    f"model.loss is {loss!r} with {name}, but a loss must give one value a sample, and clients take the mean: "
                    f"leave {name} out, {cure}"
                )
        self.loss = copy.deepcopy(loss)
        self.loss.reduction = "none"
        self.needs_classes = isinstance(loss, _OfClasses)

    def __call__(self, logits: Tensor, target: Tensor, label_counts: Tensor) -> Tensor:
        if self.needs_classes:
            return self.loss(logits, target)
        losses = self.loss(logits.reshape(target.shape), target.to(logits.dtype))
        return losses.flatten(1).mean(dim=1) if losses.ndim > 1 else losses

    def __repr__(self) -> str:
        plain = {"label_smoothing": 0.0, "delta": 1.0, "beta": 1.0}
        values = {name: getattr(self.loss, name, default) for name, default in plain.items()}
        given = [f"{name}={value}" for name, value in values.items() if value != plain[name]]
        return type(self.loss).__name__ + (f"({', '.join(given)})" if given else "")


def as_loss(loss: Loss | TorchLosses) -> Loss:
    """A loss of this module unchanged, a loss of torch as :class:`TorchLoss`."""
    return loss if isinstance(loss, Loss) else TorchLoss(loss)
