"""The common part of losses: their precision, and the reduction of values per sample."""

from typing import Literal

import torch
from torch import Tensor

from fl_lightning.checks import check_choice

LossReduction = Literal["mean", "sum", "none"]


def at_least_float32(logits: Tensor) -> Tensor:
    """Half-precision values as float32, others unchanged.

    Example::

        >>> (
        ...     at_least_float32(torch.zeros(1, dtype=torch.bfloat16)).dtype,
        ...     at_least_float32(torch.zeros(1).double()).dtype,
        ... )
        (torch.float32, torch.float64)
    """
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def reduce_losses(values: Tensor, reduction: LossReduction) -> Tensor:
    """``mean`` or ``sum`` over samples, or one value each.

    Raises:
        ValueError: if ``reduction`` is none of the three.

    Example::

        >>> losses = torch.tensor([1.0, 2.0, 6.0])
        >>> (
        ...     reduce_losses(losses, "mean"),
        ...     reduce_losses(losses, "sum"),
        ...     reduce_losses(losses, "none"),
        ... )
        (tensor(3.), tensor(9.), tensor([1., 2., 6.]))
    """
    check_choice("reduction", reduction, LossReduction)
    if reduction == "none":
        return values
    return values.mean() if reduction == "mean" else values.sum()
