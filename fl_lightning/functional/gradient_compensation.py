"""Weights of samples of old and new classes, for a model that has learned some better than others."""

import torch
from torch import Tensor


def gradient_compensation(logits: Tensor, target: Tensor, learned: Tensor, real: Tensor | None = None) -> Tensor:
    """``g_b / mean g`` with ``g_b = |sigmoid(z_by) - 1|``, with separate means over the samples of learned classes and over the
    others.

    The class-aware gradient compensation of J. Dong et al.: Federated Class-Incremental Learning, CVPR 2022, arXiv 2203.11473:
    both kinds weigh 1 on average; within a kind, samples that the model predicts worse weigh more.

    Args:
        logits: (B, C).
        target: (B,) class indices.
        learned: (B,), whether a sample is of a class that was learned before.
        real: (B,), false where a sample only fills a batch up; None: all count.

    Returns:
        (B,).

    Example::

        >>> # g is 0.1, 0.3 and 0.2
        >>> odds = torch.tensor([1 / 0.1 - 1, 1 / 0.3 - 1, 1 / 0.2 - 1]).log()
        >>> gradient_compensation(
        ...     odds[:, None], torch.tensor([0, 0, 0]), torch.tensor([True, True, False])
        ... )
        tensor([0.5000, 1.5000, 1.0000])
    """
    unknown = (-logits.gather(1, target[:, None]).squeeze(1)).sigmoid()
    counted = torch.ones_like(unknown) if real is None else real.to(unknown.dtype)
    weights = torch.zeros_like(unknown)
    for members in (learned, ~learned):
        share = members * counted
        mean = (share * unknown).sum() / share.sum().clamp_min(1)
        weights = torch.where(members, unknown / mean.clamp_min(torch.finfo(unknown.dtype).tiny), weights)
    return weights
