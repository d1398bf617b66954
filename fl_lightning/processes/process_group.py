"""The processes of a Lightning run as the ranks that share its cohorts."""

from collections.abc import Sequence
from typing import Any, Self

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import Strategy
from torch import Tensor

from fl_lightning.engines.ranks import Ranks
from fl_lightning.processes.packed_tensors import from_bytes, to_bytes
from fl_lightning.protocol import Packed


class ProcessGroup(Ranks):
    """The ranks by a trainer's strategy and, between several processes, torch.distributed.

    Args:
        strategy: of the trainer.
        rank: of this process, from 0.
        size: how many there are.
    """

    def __init__(self, strategy: Strategy, rank: int, size: int) -> None:
        self._strategy, self.rank, self.size = strategy, rank, size

    @classmethod
    def of(cls, trainer: Trainer) -> Self:
        """Those of a trainer."""
        return cls(trainer.strategy, trainer.global_rank, trainer.world_size)

    def sum(self, tensor: Tensor) -> Tensor:
        return self._strategy.reduce(tensor, reduce_op="sum")  # pyright: ignore[reportReturnType]

    def gather(self, part: Packed) -> list[Packed]:
        return self.exchange([part] * self.size)

    def exchange(self, outgoing: Sequence[Packed]) -> list[Packed]:
        """Bytes travel from process to process; how many there are goes to all."""
        if self.size == 1:
            return [*outgoing]
        device = torch.device("cpu") if "gloo" in dist.get_backend() else self._strategy.root_device
        rows = [to_bytes(part).to(device) for part in outgoing]
        sizes = torch.tensor([len(row) for row in rows], device=device)
        of_all = [torch.empty_like(sizes) for _ in range(self.size)]
        dist.all_gather(of_all, sizes)
        others = [rank for rank in range(self.size) if rank != self.rank]
        received = {rank: torch.empty(int(of_all[rank][self.rank]), dtype=torch.uint8, device=device) for rank in others}
        sent = [dist.P2POp(dist.isend, rows[rank], rank) for rank in others if len(rows[rank])]
        awaited = [dist.P2POp(dist.irecv, row, rank) for rank, row in received.items() if len(row)]
        for work in dist.batch_isend_irecv([*sent, *awaited]) if sent or awaited else ():
            work.wait()
        return [outgoing[rank] if rank == self.rank else from_bytes(received[rank].cpu()) for rank in range(self.size)]

    def broadcast(self, value: Any) -> Any:
        return self._strategy.broadcast(value)
