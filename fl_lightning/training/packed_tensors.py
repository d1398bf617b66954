"""Tensors of any types in some containers as one row of bytes, and back."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

_ALIGNED = 16  # bytes: a tensor begins at a multiple of them, as a view of another type must


class Packed(NamedTuple):
    """Where a tensor's values lie in the row."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    order: tuple[int, ...]  # of dimensions, the one with the largest stride first: values keep their order in memory
    start: int

    def values(self, row: Tensor) -> Tensor:
        """The tensor, whose memory is that of the row."""
        part = row[self.start : self.start + math.prod(self.shape) * self.dtype.itemsize].view(self.dtype)
        laid_out = part.view([self.shape[dim] for dim in self.order])
        return laid_out.permute([self.order.index(dim) for dim in range(len(self.order))])


class Contents(NamedTuple):
    """What a row of bytes holds."""

    structure: TreeSpec
    tensors: Sequence[Packed]
    num_bytes: int


def pack(containers: Any) -> tuple[Contents, Tensor]:
    """What some containers hold, and the row of its bytes on the host.

    Args:
        containers: dicts, lists or registered classes with tensors alone at their ends.
    """
    leaves, structure = tree_flatten(containers)
    packed, start = [], 0
    for leaf in leaves:
        order = tuple(sorted(range(leaf.ndim), key=leaf.stride, reverse=True))
        packed.append(Packed(leaf.dtype, tuple(leaf.shape), order, start))
        start += -(-leaf.numel() * leaf.element_size() // _ALIGNED) * _ALIGNED
    row = torch.empty(start, dtype=torch.uint8)
    for leaf, place in zip(leaves, packed, strict=True):
        place.values(row).copy_(leaf)
    return Contents(structure, packed, start), row


def unpack(contents: Contents, row: Tensor) -> Any:
    """What :func:`pack` was given, each tensor in memory of its own: one that is kept keeps no other."""
    leaves = [packed.values(row).clone() for packed in contents.tensors]
    return tree_unflatten(leaves, contents.structure)
