"""Weighted means of clients' uploads."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning.functional.many_tensors import copy_all, lie_alike

State = dict[str, Tensor]  # one net's state dict, or a part of it


def weighted_average(states: Sequence[State], weights: Sequence[float] | Tensor) -> State:
    """Weighted mean of state dicts, name by name: the server's step in FedAvg (McMahan et al., AISTATS 2017, Algorithm 1).

    ``sum_k weights[k] * states[k] / sum_k weights[k]``, accumulated in float64 and cast back to each tensor's dtype. Integer
    tensors (BatchNorm's ``num_batches_tracked``) are averaged in the same way and truncated; a boolean is true if its mean is
    above one half.

    Args:
        states: at least one dict; all with the same names and shapes.
        weights: one number at least 0 for each state, not all 0.

    Raises:
        ValueError: if there is no state, the lengths or names differ, or a weight is negative or all are 0.

    Example::

        >>> import torch
        >>> weighted_average(
        ...     [{"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([5.0, 4.0])}],
        ...     weights=[3, 1],
        ... )
        {'w': tensor([2., 1.])}
    """
    weights = torch.as_tensor(weights, dtype=torch.float64)
    if len(states) == 0 or len(states) != len(weights):
        raise ValueError(f"{len(states)} states and {len(weights)} weights: give one weight a state, at least one state")
    if not (weights >= 0).all() or not 0 < weights.sum() < float("inf"):
        raise ValueError(f"weights are {weights.tolist()}, must be at least 0 and not all 0")
    if any(state.keys() != states[0].keys() for state in states):
        raise ValueError("the states differ in their names: average states of one net only")
    if any(state[name].shape != tensor.shape for state in states for name, tensor in states[0].items()):
        raise ValueError("the states differ in their shapes: average states of one net only")
    total, zero = float(weights.sum()), torch.zeros((), dtype=torch.float64)
    factors: list[float] = weights.tolist()
    sums = {name: sum((w * s[name].double() for w, s in zip(factors, states, strict=True)), start=zero) for name in states[0]}
    return {name: cast_mean(sums[name] / total, first.dtype) for name, first in states[0].items()}


def cast_mean(mean: Tensor, dtype: torch.dtype) -> Tensor:
    """A float64 mean in the dtype of the averaged tensors; integers are truncated, and a boolean is true above one half.

    A mean that misses an integer only by rounding is that integer: ten counters of 7 average to 7, not to 6.

    Example::

        >>> cast_mean(torch.tensor([7 - 1e-9, 6.9], dtype=torch.float64), torch.int64)
        tensor([7, 6])
    """
    if dtype.is_floating_point:
        return mean.to(dtype)
    if dtype == torch.bool:
        return mean > 0.5
    nearest = mean.round()
    return torch.where((mean - nearest).abs() < 1e-6, nearest, mean).to(dtype)


def less_mean(tensors: State, means: State) -> State:
    """Tensors less their means in float64, rounded to each tensor's type, in its memory format: a few operations for all.

    Args:
        tensors: by name; those without a mean are left out.
        means: by name, float64.

    Example::

        >>> less_mean(
        ...     {"w": torch.tensor([3.0, 1.0]), "v": torch.ones(2)},
        ...     {"w": torch.tensor([1.0, 1.0], dtype=torch.float64)},
        ... )
        {'w': tensor([2., 0.])}
    """
    old = [tensors[name] for name in means]
    differences = [torch.empty_like(tensor, dtype=torch.float64) for tensor in old]
    pairs = zip(means.values(), differences, strict=True)
    new = [mean if lie_alike(mean, like) else torch.empty_like(like).copy_(mean) for mean, like in pairs]
    rounded = [torch.empty_like(tensor) for tensor in old]
    copy_all(differences, old)
    if new:
        torch._foreach_sub_(differences, new)  # pyright: ignore[reportPrivateImportUsage]
    copy_all(rounded, differences)
    return dict(zip(means, rounded, strict=True))
