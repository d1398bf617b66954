"""Mistakes in hooks that an engine finds at a method's first steps, in a rehearsal where there is one."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.checks import ArgumentError
from fl_lightning.engines.gradients import is_stacked
from fl_lightning.functional.stateless import tensors_of


def changes_in_place(method: FederatedAlgorithm) -> dict[str, int]:
    """How often each tensor of the server that hooks of a visit can reach has been changed in place."""
    kinds = method.server_states.items()
    states = {f"server_states {kind} of {name}": t for kind, of in kinds for name, t in of.named_buffers()}
    received = {f"received_state {name}": tensor for name, tensor in tensors_of(method.net).items()}
    counts = {"label_counts": method.data.label_counts, "train_label_counts": method.data.train_label_counts}
    shared = {**received, **states, **counts}
    return {name: tensor._version for name, tensor in shared.items() if not tensor.is_inference()}


@contextmanager
def without_new_attributes(method: FederatedAlgorithm) -> Iterator[None]:
    """Take back the tensors that hooks set as attributes of a method.

    Raises:
        RuntimeError: if one is of stacked clients, which no other stack can use.
    """
    before = dict(vars(method))
    try:
        yield
    finally:
        new = {name: t for name, t in vars(method).items() if isinstance(t, Tensor) and t is not before.get(name)}
        for name in new:
            del vars(method)[name]
            if name in before:
                vars(method)[name] = before[name]
    for name, tensor in new.items():
        if is_stacked(tensor):
            raise RuntimeError(f"a hook keeps a client's tensor as self.{name} instead of in client.state")


def check_state(method: FederatedAlgorithm, state: dict[str, Any]) -> None:
    """Check that what a client keeps is tensors, by name or by group and name."""
    for name, part in state.items():
        if isinstance(part, dict):
            check_state(method, part)
        elif not isinstance(part, Tensor):
            raise ArgumentError(
                type(method).__name__,
                f"keeps {name!r} of type {type(part).__name__} in client.state, must be a tensor, or a dict of tensors by name",
            )


def lies_in(part: Any, memory: Collection[int]) -> bool:
    """Whether something is a tensor in memory that begins at one of these addresses."""
    return isinstance(part, Tensor) and part.untyped_storage().data_ptr() in memory


def check_apart(method: FederatedAlgorithm, state: dict[str, Any], memory: Collection[int]) -> None:
    """Check that local steps left no tensor of the net in a client's state, where later steps would change it."""
    for name, part in state.items():
        if isinstance(part, dict):
            check_apart(method, part, memory)
        elif lies_in(part, memory):
            raise ArgumentError(
                type(method).__name__,
                f"keeps {name!r} in client.state, which is a tensor of the net that the next local steps change: keep a copy, "
                "tensor.detach().clone()",
            )


def check_parts(method: FederatedAlgorithm, hook: str, parts: dict[str, Any]) -> None:
    """Check that a hook returned tensors, however nested."""
    other = next((part for part in tree_leaves(parts) if not isinstance(part, Tensor)), None)
    if other is not None:
        name = f"{type(method).__name__}.{hook}"
        raise ArgumentError(name, f"returns a part of type {type(other).__name__}, must be a tensor: give torch.tensor(...)")


def weights_outside(method: FederatedAlgorithm) -> dict[str, Tensor]:
    """Weights of a method that require a gradient but are not its net's, by name."""
    of_net = set(method.net.parameters())
    return {name: weight for name, weight in method.named_parameters() if weight.requires_grad and weight not in of_net}


def check_minimised(method: FederatedAlgorithm, value: Tensor, outside: dict[str, Tensor]) -> None:
    """Check what a local step minimises, before autograd would refuse it in its own words.

    Args:
        outside: weights that are not the net's, by name; no step trains them.
    """
    if value.ndim > 0:
        raise ArgumentError(
            type(method).__name__,
            f"minimises a tensor of shape {tuple(value.shape)}, must be a scalar: take the sum in client_penalty",
        )
    if not value.requires_grad:
        raise unconnected(method)
    # Computes nothing if the value depends on none of them.
    gradients = torch.autograd.grad(value, [*outside.values()], retain_graph=True, allow_unused=True) if outside else ()
    for name, gradient in zip(outside, gradients, strict=True):
        if gradient is not None:
            raise ArgumentError(
                type(method).__name__,
                f"minimises a loss that depends on {name}, which no step trains because it is outside the net: make it part of "
                "the net, or set its requires_grad to False",
            )


def unconnected(method: FederatedAlgorithm) -> ArgumentError:
    """The error of a loss that no step can lower."""
    return ArgumentError(
        type(method).__name__,
        "minimises something that depends on no trained weight: in hooks use the argument net, not self.net, and do not detach "
        "losses",
    )
