"""Weighted means of what clients send."""

from collections.abc import Sequence

import torch
from torch import Tensor

State = dict[str, Tensor]  # one net's state dict, or a part of it


def weighted_average(states: Sequence[State], weights: Sequence[float] | Tensor) -> State:
    """Weighted mean of state dicts, name by name: the server's step in FedAvg (McMahan et al., AISTATS 2017, Algorithm 1).

    ``sum_k weights[k] * states[k] / sum_k weights[k]``, accumulated in float64 and cast back to each tensor's dtype. Integer
    tensors (BatchNorm's ``num_batches_tracked``) are averaged the same way and truncated.

    Args:
        states: at least one dict; all with the same names and shapes.
        weights: one number at least 0 for each state, not all 0.

    Raises:
        ValueError: if there is no state, the lengths or names differ, or a weight is negative or all are 0.
    """
    weights = torch.as_tensor(weights, dtype=torch.float64)
    if len(states) == 0 or len(states) != len(weights):
        raise ValueError(f"{len(states)} states and {len(weights)} weights: give one weight a state, at least one state")
    if (weights < 0).any() or weights.sum() == 0:
        raise ValueError(f"weights are {weights.tolist()}, must be at least 0 and not all 0")
    if any(state.keys() != states[0].keys() for state in states):
        raise ValueError("the states differ in their names: average states of one net only")
    shares = weights / weights.sum()
    return {
        name: sum(share * state[name].double() for share, state in zip(shares.tolist(), states, strict=True)).to(first.dtype)
        for name, first in states[0].items()
    }
