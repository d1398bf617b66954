"""A net called with other tensors instead of those it holds."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

Slots = dict[str, list[str]]  # by a tensor's name: the names of all attributes that hold it


def tensors_of(net: nn.Module) -> dict[str, Tensor]:
    """All weights and buffers of a net by name, also those that a state dict leaves out, without gradient; shares memory.

    Example::

        >>> {name: tuple(tensor.shape) for name, tensor in tensors_of(nn.Linear(2, 3)).items()}
        {'weight': (3, 2), 'bias': (3,)}
    """
    return {name: tensor.detach() for name, tensor in (*net.named_parameters(), *net.named_buffers())}


def tensor_slots(net: nn.Module) -> Slots:
    """All attributes that hold a net's weights and buffers, by their names in ``named_parameters`` and ``named_buffers``.

    A weight that two layers share has two; a layer that is registered under two names counts once.

    Example::

        >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        >>> net[1].weight = net[0].weight
        >>> tensor_slots(net)
        {'0.weight': ['0.weight', '1.weight']}
    """
    names: dict[int, str] = {}
    slots: Slots = {}
    for prefix, layer in net.named_modules():
        for held in (layer.named_parameters, layer.named_buffers):
            for attribute, tensor in held(recurse=False, remove_duplicate=False):
                slot = f"{prefix}.{attribute}" if prefix else attribute
                slots.setdefault(names.setdefault(id(tensor), slot), []).append(slot)
    return slots


def call_with(net: nn.Module, slots: Slots, tensors: Mapping[str, Tensor], arguments: Sequence[Any]) -> Any:
    """The output of a net with other weights and buffers in it, only during the call.

    Args:
        slots: :func:`tensor_slots` of the net.
        tensors: by name; those that are left out do not change.
        arguments: arguments of the net.

    Example::

        >>> import torch
        >>> net = nn.Linear(2, 1, bias=False)
        >>> call_with(
        ...     net,
        ...     tensor_slots(net),
        ...     {"weight": torch.tensor([[1.0, 2.0]])},
        ...     [torch.tensor([3.0, 4.0])],
        ... )
        tensor([11.])
    """
    # With tie_weights torch replaces the tensors of a layer with two names twice, and leaves the new ones there.
    replaced = {slot: tensor for name, tensor in tensors.items() for slot in slots[name]}
    return functional_call(net, replaced, tuple(arguments), tie_weights=False)
