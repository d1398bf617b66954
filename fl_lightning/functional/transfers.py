"""Copies between host and device for which the host does not wait."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def on_device(values: Sequence[Any] | float, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor of some numbers on a device, as from ``torch.tensor(values, dtype=dtype, device=device)``.

    That call makes the host wait until a GPU has done all its work. Here the copy queues up behind that work, from pinned
    memory, which torch keeps until the copy is made.
    """
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def filled(value: int | Tensor, device: torch.device) -> Tensor:
    """A tensor () of a number, made on the device without a copy from the host; a tensor is returned as it is."""
    return value if isinstance(value, Tensor) else torch.full((), value, device=device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device, copied in the same way."""
    crosses = device.type == "cuda" and tensor.device.type == "cpu"
    return (tensor.pin_memory() if crosses else tensor).to(device, non_blocking=True)


def to_host(tensor: Tensor) -> Tensor:
    """A copy on the host. One from a GPU has its values once the host has waited for the device, and not before.

    It is in pinned memory, which is scarce: :func:`kept` moves it on.
    """
    return tensor.detach().to("cpu", copy=True, non_blocking=True)


def kept(tensor: Tensor) -> Tensor:
    """A tensor of the host in memory that is not pinned."""
    return tensor.clone() if tensor.is_pinned() else tensor
