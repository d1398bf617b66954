"""Gradients in a local step that is a function of tensors: by a transform of torch's, or by autograd below a stack.

``torch.func.grad`` under ``torch.vmap`` splits operations without a rule for stacks: GroupNorm's backward pass becomes thirty
small operations. Below the stack ``torch.vmap`` sees only the forward pass, and autograd sees its stacked operations, with one
operation for each backward pass. Sums are taken in another order.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch.eager_transforms import enable_inplace_requires_grad
from torch.func import grad_and_value
from torch.utils._pytree import tree_map_only

from fl_lightning.functional.aggregation import State

_functorch = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
Evaluate = Callable[[State, State], tuple[Tensor, Any]]


def by_transform(evaluate: Evaluate, weights: State, held: State) -> tuple[State, tuple[Tensor, Any]]:
    """Gradients by name, then the value and the further tensors.

    Args:
        evaluate: maps weights and held tensors, by name, to the objective, a scalar, and further tensors.
    """
    return grad_and_value(evaluate, has_aux=True)(weights, held)


def below_the_stack(evaluate: Evaluate, weights: State, held: State) -> tuple[State, tuple[Tensor, Any]]:
    """As :func:`by_transform`, for one client of a stack.

    If the weights are the same for all clients, or another transform is active within the stack, it is that function.
    """
    level = _functorch.current_level()
    if not all(_functorch.is_batchedtensor(row) and _functorch.maybe_get_level(row) == level for row in weights.values()):
        return by_transform(evaluate, weights, held)
    with enable_inplace_requires_grad(True):
        stacks = [_stack(row).requires_grad_() for row in weights.values()]
    with torch.enable_grad():
        value, more = evaluate(dict(zip(weights, _rows(stacks, level), strict=True)), held)
        total = _functorch.get_unwrapped(value).sum()
    gradients = torch.autograd.grad(total, stacks, materialize_grads=True)
    without_graph = tree_map_only(Tensor, torch.detach, (value, more))
    return dict(zip(weights, _rows(gradients, level), strict=True)), without_graph


def is_stacked(tensor: Tensor) -> bool:
    """Whether it is a client's row of a stack."""
    return _functorch.is_functorch_wrapped_tensor(tensor)


def better_below_the_stack(net: nn.Module) -> bool:
    """Whether the net has a layer with a backward pass that a transform would split."""
    return any(isinstance(layer, nn.GroupNorm) for layer in net.modules())


def _stack(row: Tensor) -> Tensor:
    """All clients' tensors, (clients, ...), of which this is one; without their graph."""
    return _functorch.get_unwrapped(row).movedim(_functorch.maybe_get_bdim(row), 0).detach()


def _rows(stacks: Sequence[Tensor], level: int) -> list[Tensor]:
    """One client's tensors, as ``torch.vmap`` shows them."""
    return [_functorch._add_batch_dim(stack, 0, level) for stack in stacks]
