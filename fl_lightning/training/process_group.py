"""The processes of a Lightning run as the ranks that share its cohorts."""

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch.strategies import Strategy
from torch import Tensor

from fl_lightning.engines.ranks import Ranks


class ProcessGroup(Ranks):
    """The ranks by a trainer's strategy and, between several processes, torch.distributed.

    Args:
        strategy: of the trainer.
        rank: of this process, from 0.
        size: how many there are.
    """

    def __init__(self, strategy: Strategy, rank: int, size: int) -> None:
        self._strategy, self.rank, self.size = strategy, rank, size

    def sum(self, tensor: Tensor) -> Tensor:
        return self._strategy.reduce(tensor, reduce_op="sum")  # pyright: ignore[reportReturnType]

    def gather(self, part: Any) -> list[Any]:
        parts: list[Any] = [part] * self.size
        if self.size > 1:
            torch.distributed.all_gather_object(parts, part)
        return parts

    def exchange(self, outgoing: Sequence[dict[int, Any]]) -> dict[int, Any]:
        incoming: dict[int, Any] = {}
        for source in range(self.size):
            received: list[Any] = [None]
            torch.distributed.scatter_object_list(received, list(outgoing) if self.rank == source else None, src=source)
            incoming.update(received[0])
        return incoming

    def broadcast(self, value: Any) -> Any:
        return self._strategy.broadcast(value)
