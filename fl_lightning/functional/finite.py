"""Checks that tensors are finite, without a copy of their values and without a transfer from the device."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def finite_rows(tensors: Iterable[Tensor], num_rows: int, device: torch.device | None = None) -> Tensor:
    """Whether all values in each row of each tensor are finite, (tensors, rows) booleans on their device.

    Integers and empty tensors, which are always finite, are left out.

    Args:
        tensors: (rows, ...) each.
        num_rows: rows of each tensor.
        device: device of the result if there are no tensors.

    Example::

        >>> finite_rows(
        ...     [
        ...         torch.tensor([[1.0, 2.0], [3.0, torch.nan]]),
        ...         torch.tensor([torch.inf, 0.0]),
        ...     ],
        ...     num_rows=2,
        ... )
        tensor([[ True, False],
                [False,  True]])
    """
    values = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel() > 0]
    if not values:
        return torch.ones(0, num_rows, dtype=torch.bool, device=device)
    if values[0].device.type != "cpu" and num_rows == 1:
        # One launch for all. A sum passes a NaN on wherever it is taken, and in float64 float32 values do not overflow.
        norms = torch._foreach_norm(values, 1, torch.float64)  # pyright: ignore[reportPrivateImportUsage]
        return torch.stack(norms)[:, None].isfinite()
    # Minimum and maximum pass a NaN on, and take no memory, as a mask of the values would.
    if num_rows == 1:  # both in one pass, which torch has for all values but not, at this speed, for rows
        smallest, largest = map(torch.stack, zip(*(value.aminmax() for value in values), strict=True))
        return torch.maximum(largest, -smallest).isfinite()[:, None]
    largest, smallest = (torch.stack([_over_rows(reduce, value) for value in values]) for reduce in (torch.amax, torch.amin))
    return torch.maximum(largest, -smallest).isfinite()


def all_finite(tensors: Iterable[Tensor]) -> Tensor:
    """Whether each tensor's values are all finite, (tensors,) booleans on their device; without integers and empty ones.

    Example::

        >>> all_finite([torch.tensor([1.0, torch.nan]), torch.zeros(3)])
        tensor([False,  True])
    """
    return finite_rows((tensor[None] for tensor in tensors), 1)[:, 0]


def _over_rows(reduce: Callable[..., Tensor], values: Tensor) -> Tensor:
    """Over all other dimensions at once, which reads the values in memory order."""
    return values if values.ndim == 1 else reduce(values, dim=tuple(range(1, values.ndim)))
