"""The processes of a Lightning run as the ranks that share its cohorts."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import Strategy
from torch import Tensor

from fl_lightning.engines.ranks import Ranks
from fl_lightning.training.packed_tensors import Contents, pack, unpack


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
            dist.all_gather_object(parts, part)
        return parts

    def exchange(self, outgoing: Sequence[dict[int, Any]]) -> dict[int, Any]:
        """Tensors travel as bytes from process to process; what they are goes to all, which is little."""
        contents, buffers = zip(*(pack(part) for part in outgoing), strict=True)
        of_all: list[Sequence[Contents]] = self.gather(contents)
        device = torch.device("cpu") if "gloo" in dist.get_backend() else self._strategy.root_device
        others = [rank for rank in range(self.size) if rank != self.rank]
        received = {rank: torch.empty(of_all[rank][self.rank].num_bytes, dtype=torch.uint8, device=device) for rank in others}
        sent = [dist.P2POp(dist.isend, buffers[rank].to(device), rank) for rank in others if len(buffers[rank])]
        awaited = [dist.P2POp(dist.irecv, buffer, rank) for rank, buffer in received.items() if len(buffer)]
        for work in dist.batch_isend_irecv([*sent, *awaited]) if sent or awaited else ():
            work.wait()
        incoming = dict(outgoing[self.rank])
        for rank, buffer in received.items():
            incoming |= unpack(of_all[rank][self.rank], buffer.cpu())
        return incoming

    def broadcast(self, value: Any) -> Any:
        return self._strategy.broadcast(value)
