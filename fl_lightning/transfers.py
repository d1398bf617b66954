"""Numbers of the host on their way to the device, for which the host does not wait."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def on_device(values: Sequence[Any] | float, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor of some numbers on a device, as ``torch.tensor(values, dtype=dtype, device=device)`` gives.

    That one makes the host wait until a GPU has done all its work. Here the copy queues up behind that work, from pinned
    memory, which torch keeps until the copy is made.
    """
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)
