"""A client's state from one visit to the next, as one object that moves through memory, disk, checkpoints and processes."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._pytree import register_dataclass, tree_leaves, tree_map

from fl_lightning.functional.aggregation import State

_BLOCK = 1 << 16  # entries of a tensor in which two bytes give the position of a value


@dataclass(frozen=True)
class SparseTensor:
    """A tensor with few values that are not 0: these values and, for each, two bytes for its position.

    Args:
        values: (n,), in the order of the flattened tensor.
        offsets: (n,) int16, of each value within its block of 65,536 entries, less 32,768.
        blocks: values of each block, int32.
    """

    values: Tensor
    offsets: Tensor
    blocks: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        """The values of a dense tensor that are not 0."""
        flat = tensor.reshape(-1)
        positions = flat.nonzero().flatten()
        return cls(
            values=flat[positions],
            offsets=(positions % _BLOCK - _BLOCK // 2).to(torch.int16),
            blocks=torch.bincount(positions // _BLOCK, minlength=-(-len(flat) // _BLOCK)).to(torch.int32),
        )

    @property
    def positions(self) -> Tensor:
        """(n,), the positions of the values in the flattened tensor."""
        starts = _BLOCK * torch.arange(len(self.blocks), device=self.blocks.device) + _BLOCK // 2
        return torch.repeat_interleave(starts, self.blocks, output_size=len(self.offsets)) + self.offsets

    def dense(self, shape: torch.Size) -> Tensor:
        """The tensor in full."""
        flat = self.values.new_zeros(math.prod(shape))
        flat[self.positions] = self.values
        return flat.reshape(shape)


@dataclass(frozen=True)
class LearnedTask:
    """A client's state of a task that it has learned.

    Args:
        tensors: weights and buffers by name.
        sparse: weights with few values in the task, by the name of their layer.
        known: (F, 2) int64, the tasks of other clients that it builds on, by client and position; None for methods without such
            tasks.
    """

    tensors: State = field(default_factory=State)
    sparse: dict[str, SparseTensor] = field(default_factory=dict[str, SparseTensor])
    known: Tensor | None = None


@dataclass(frozen=True)
class ClientState:
    """Everything that a client keeps between visits; false if empty.

    Args:
        method: state of the method, ``client.state``: tensors by name, or by group and name.
        weights: weights and buffers of its model that stay with it, by name.
        moments: moments of its optimizer, by the position of the weight.
        tasks: tasks that it has learned, by their position in its sequence.
    """

    method: dict[str, Any] = field(default_factory=dict[str, Any])
    weights: State = field(default_factory=State)
    moments: dict[int, State] = field(default_factory=dict[int, State])
    tasks: dict[int, LearnedTask] = field(default_factory=dict[int, LearnedTask])

    def __bool__(self) -> bool:
        return bool(self.method or self.weights or self.moments or self.tasks)

    def tensors(self) -> list[Tensor]:
        """All of them, in no particular order."""
        return tree_leaves(self)

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The same with other tensors."""
        # Most clients of most methods keep nothing, and walking through it would take longer than all else of their visit.
        return tree_map(function, self) if self else self

    def num_bytes(self) -> int:
        """Of all tensors."""
        return num_bytes(self)


def num_bytes(tensors: Any) -> int:
    """Bytes of the tensors in some containers, such as those of a state, or by name or by group and name."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tree_leaves(tensors)) if tensors else 0


for kind in (SparseTensor, LearnedTask, ClientState):
    register_dataclass(kind)
