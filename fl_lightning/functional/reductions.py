"""What losses have in common: their precision, and how values of samples become one."""

from typing import Literal

import torch
from torch import Tensor

LossReduction = Literal["mean", "sum", "none"]


def at_least_float32(logits: Tensor) -> Tensor:
    """Half-precision values as float32, others as they are."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def reduce_losses(values: Tensor, reduction: LossReduction) -> Tensor:
    """``mean`` or ``sum`` over samples, or one value each.

    Raises:
        ValueError: if ``reduction`` is none of the three.
    """
    if reduction == "none":
        return values
    if reduction == "mean":
        return values.mean()
    if reduction == "sum":
        return values.sum()
    raise ValueError(f"reduction is {reduction!r}, must be 'mean', 'sum' or 'none'")
