"""Cross entropies that use the client's label counts.

They take logits of shape (B, C), targets of shape (B,) and the client's label counts of shape (C,), or class weights
(``weighted_cross_entropy``). If the client holds every class equally often, and for equal class weights, they have the
gradient of ordinary cross entropy. Half-precision logits are computed and returned in float32, as autocast does for cross
entropy. None of them is for evaluation: a global model is evaluated on its plain logits.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fl_lightning.functional.loss_reductions import LossReduction, at_least_float32, reduce_losses


def truncated_cross_entropy(logits: Tensor, target: Tensor, label_counts: Tensor, reduction: LossReduction = "mean") -> Tensor:
    """Cross entropy with a softmax over only the client's classes.

    ``logsumexp_{c in C_k} f_c - f_y`` with ``C_k = {c : label_counts[c] > 0}``: equation (3) of Legate, Caccia, Belilovsky,
    "Reducing Forgetting in Federated Learning with Truncated Cross-Entropy". Absent classes get a gradient of exactly 0; a
    client with one class has loss and gradient exactly 0.

    Args:
        logits: (B, C), any float dtype.
        target: (B,) class indices, each of a class that the client holds.
        label_counts: (C,) samples of each class at the client; only whether a count is above 0 matters.
        reduction: ``mean`` and ``sum`` give a scalar, ``none`` gives (B,).

    Raises:
        ValueError: if ``reduction`` is none of the three.

    Example::

        >>> logits = torch.tensor([[0.0, 0.0, 9.0]])
        >>> # log 2
        >>> truncated_cross_entropy(
        ...     logits, torch.tensor([0]), label_counts=torch.tensor([1, 3, 0])
        ... )
        tensor(0.6931)
    """
    logits = at_least_float32(logits)
    present_only = logits.masked_fill(label_counts <= 0, float("-inf"))
    return reduce_losses(torch.logsumexp(present_only, dim=-1) - _true_logit(logits, target), reduction)


def reweighted_softmax_cross_entropy(
    logits: Tensor, target: Tensor, label_counts: Tensor, reduction: LossReduction = "mean"
) -> Tensor:
    """Cross entropy of the re-weighted softmax (WSM): each class counts by its share of the client's samples.

    ``logsumexp_c (f_c + log a_c) - f_y`` with ``a = label_counts / sum(label_counts)``: Legate's thesis, equation of the
    re-weighted softmax. ``log a`` is only in the log-sum-exp, as the thesis prints it; its code also adds it to the true logit,
    which changes the value and not the gradient. With equal counts this is cross entropy less ``log C``. Values can be negative
    and are not comparable across clients.

    Args:
        logits: (B, C), any float dtype.
        target: (B,) class indices, each of a class that the client holds.
        label_counts: (C,) samples of each class at the client, not all zero.
        reduction: ``mean`` and ``sum`` give a scalar, ``none`` gives (B,).

    Raises:
        ValueError: if ``reduction`` is none of the three.

    Example::

        >>> logits = torch.tensor([[1.0, 5.0]]).log()
        >>> # log(3/4 + 5/4)
        >>> reweighted_softmax_cross_entropy(
        ...     logits, torch.tensor([0]), label_counts=torch.tensor([3, 1])
        ... )
        tensor(0.6931)
    """
    logits = at_least_float32(logits)
    # The dtype of the logits: a float64 share would silently promote loss and backward pass to double.
    counts = label_counts.to(logits.dtype)
    log_share = torch.log(counts / counts.sum())
    return reduce_losses(torch.logsumexp(logits + log_share, dim=-1) - _true_logit(logits, target), reduction)


def masked_cross_entropy(logits: Tensor, target: Tensor, label_counts: Tensor, reduction: LossReduction = "mean") -> Tensor:
    """Cross entropy with the logits of absent classes replaced by 0, the form of HeteroFL.

    ``log(sum_{c in C_k} exp f_c + |absent|) - f_y``: Diao, Ding, Tarokh, "HeteroFL", ICLR 2021. Its text says "mask", its code
    fills with zero. Absent logits get no gradient, but the number of absent classes stays in the denominator;
    :func:`truncated_cross_entropy` is the form without it.

    Args:
        logits: (B, C), any float dtype.
        target: (B,) class indices, each of a class that the client holds.
        label_counts: (C,) samples of each class at the client; only whether a count is above 0 matters.
        reduction: ``mean`` and ``sum`` give a scalar, ``none`` gives (B,).

    Raises:
        ValueError: if ``reduction`` is none of the three.

    Example::

        >>> logits = torch.tensor([[0.0, 0.0, 9.0]])
        >>> # log 3
        >>> masked_cross_entropy(
        ...     logits, torch.tensor([0]), label_counts=torch.tensor([1, 3, 0])
        ... )
        tensor(1.0986)
    """
    filled = at_least_float32(logits).masked_fill(label_counts <= 0, 0.0)
    return reduce_losses(F.cross_entropy(filled, target, reduction="none"), reduction)


def calibrated_cross_entropy(
    logits: Tensor, target: Tensor, label_counts: Tensor, tau: float = 1.0, reduction: LossReduction = "mean"
) -> Tensor:
    """Cross entropy of calibrated logits: the fewer samples of a class a client has, the larger the margin it must keep.

    ``logsumexp_c (f_c - tau n_c^(-1/4)) - (f_y - tau n_y^(-1/4))`` with ``n = label_counts``: FedLC (Zhang et al., ICML 2022).
    The paper does not say what an absent class has, n = 0. Here it is the limit, no part in the softmax, so absent classes get
    a gradient of exactly 0; popular code takes 1e-8 samples, a margin of 100 tau. The counts are those of the client: PFLlib
    takes sums over all clients, by which every client has the same margins.

    Args:
        logits: (B, C), any float dtype.
        target: (B,) class indices, each of a class that the client holds.
        label_counts: (C,) samples of each class at the client.
        tau: scale of the margins, above 0.
        reduction: ``mean`` and ``sum`` give a scalar, ``none`` gives (B,).

    Raises:
        ValueError: if ``reduction`` is none of the three.

    Example::

        >>> logits = torch.zeros(1, 3)
        >>> # log(1 + exp(1/2 - 1))
        >>> calibrated_cross_entropy(logits, torch.tensor([1]), torch.tensor([1, 16, 0]))
        tensor(0.4741)
    """
    logits = at_least_float32(logits)
    margins = tau * label_counts.to(logits.dtype).pow(-0.25)  # infinite for absent classes
    return reduce_losses(F.cross_entropy(logits - margins, target, reduction="none"), reduction)


def weighted_cross_entropy(logits: Tensor, target: Tensor, class_weights: Tensor, reduction: LossReduction = "mean") -> Tensor:
    """Cross entropy that weights each sample by its class: ``a_y (logsumexp_c f_c - f_y)``.

    The mean is over samples. torch's ``CrossEntropyLoss(weight=...)`` divides by the sum of the weights in a batch, so that
    a sample counts differently in each batch.

    Args:
        logits: (B, C), any float dtype.
        target: (B,) class indices.
        class_weights: (C,), at least 0.
        reduction: ``mean`` and ``sum`` give a scalar, ``none`` gives (B,).

    Raises:
        ValueError: if ``reduction`` is none of the three.

    Example::

        >>> # 3 log 2
        >>> weighted_cross_entropy(
        ...     torch.zeros(1, 2), torch.tensor([1]), torch.tensor([1.0, 3.0])
        ... )
        tensor(2.0794)
    """
    losses = F.cross_entropy(at_least_float32(logits), target, reduction="none")
    return reduce_losses(class_weights.to(losses.dtype)[target] * losses, reduction)


def balanced_class_weights(label_counts: Tensor) -> Tensor:
    """Weights (C,) with which the classes that a client holds count equally: ``n / (C_k n_c)``, 0 for absent classes.

    n samples of C_k classes have the mean weight 1; scikit-learn's ``class_weight="balanced"``.

    Args:
        label_counts: (C,) samples of each class at the client.

    Example::

        >>> balanced_class_weights(torch.tensor([1, 3, 0]))
        tensor([2.0000, 0.6667, 0.0000])
    """
    held = label_counts > 0
    shares = label_counts.sum() / (held.sum() * label_counts.clamp_min(1))
    return shares * held


def _true_logit(logits: Tensor, target: Tensor) -> Tensor:
    return logits.gather(-1, target.unsqueeze(-1)).squeeze(-1)
