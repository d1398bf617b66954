"""Named tensors of any types as one row of bytes, and back, with no pickle in it."""

import json
import math

import torch
from torch import Tensor

from fl_lightning.protocol import Packed

_ALIGNED = 16  # bytes: a tensor begins at a multiple of them, as a view of another type must
_LENGTH = 8  # bytes that say how long the header is


def to_bytes(packed: Packed) -> Tensor:
    """(n,) uint8 on the host: the length of a header, the header in JSON, then the values of each tensor; nothing of nothing.

    The header has the name, type and shape of each tensor, its dimensions in the order of their strides, the largest first, and
    how many bytes after the header it begins.
    """
    described, size = [], 0
    for name, tensor in packed.items():
        order = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
        described.append((name, str(tensor.dtype).removeprefix("torch."), [*tensor.shape], order, size))
        size += -(-tensor.numel() * tensor.element_size() // _ALIGNED) * _ALIGNED
    header = json.dumps(described).encode() if packed else b""
    header += b" " * (-(len(header) + _LENGTH) % _ALIGNED)
    row = torch.empty(_LENGTH + len(header) + size if packed else 0, dtype=torch.uint8)
    if packed:
        head = len(header).to_bytes(_LENGTH, "little") + header
        row[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    for tensor, place in zip(packed.values(), _places(row).values(), strict=True):
        place.copy_(tensor)
    return row


def from_bytes(row: Tensor) -> Packed:
    """What :func:`to_bytes` was given, each tensor in memory of its own: one that is kept keeps no other."""
    return {name: place.clone() for name, place in _places(row).items()}


def _places(row: Tensor) -> Packed:
    """The tensors that a row's header describes, in the memory of the row."""
    start = _LENGTH + int.from_bytes(row[:_LENGTH].numpy().tobytes(), "little")
    places = {}
    for name, kind, shape, order, begin in json.loads(row[_LENGTH:start].numpy().tobytes() or "[]"):
        dtype, begin = getattr(torch, kind), start + begin
        values = row[begin : begin + math.prod(shape) * dtype.itemsize].view(dtype)
        places[name] = values.view([shape[dim] for dim in order]).permute([order.index(dim) for dim in range(len(order))])
    return places
