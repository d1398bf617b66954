"""Clipping of the gradients of a local step."""

from collections.abc import Container

from fl_lightning.functional.aggregation import State
from fl_lightning.functional.many_tensors import norm_of


def clipped(gradients: State, limit: float | None, resting: Container[str]) -> State:
    """Gradients scaled to a Euclidean norm of at most a limit, as torch's ``clip_grad_norm_``; as they are without a limit.

    Args:
        gradients: by the names of their weights.
        limit: above 0; None: none.
        resting: weights that stay as they are in this step; their gradients do not count.

    Example::

        >>> import torch
        >>> clipped({"weight": torch.tensor([3.0, 4.0])}, 1.0, ())  # of norm 5
        {'weight': tensor([0.6000, 0.8000])}
    """
    if limit is None:
        return gradients
    norm = norm_of(gradient for name, gradient in gradients.items() if name not in resting)
    factor = (limit / (norm + 1e-6)).clamp_max(1.0)
    return {name: gradient * factor for name, gradient in gradients.items()}
