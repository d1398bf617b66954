"""The processes of a Lightning run as the ranks that share its cohorts, and what they send: rows of bytes, with no pickle."""

import json
import math
from collections.abc import Sequence
from typing import Any, Self

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import Strategy
from torch import Tensor

from fl_lightning.engines.ranks import Ranks
from fl_lightning.protocol import Packed

_ALIGNED = 16  # bytes: a tensor begins at a multiple of this, as a view of another type must
_LENGTH = 8  # bytes of the header's length


class ProcessGroup(Ranks):
    """The ranks by a trainer's strategy and, between several processes, torch.distributed."""

    def __init__(self, strategy: Strategy, rank: int, size: int) -> None:
        self._strategy, self.rank, self.size = strategy, rank, size

    @classmethod
    def of(cls, trainer: Trainer) -> Self:
        """The processes of a trainer."""
        return cls(trainer.strategy, trainer.global_rank, trainer.world_size)

    def sum(self, tensor: Tensor) -> Tensor:
        return self._strategy.reduce(tensor, reduce_op="sum")  # pyright: ignore[reportReturnType]

    def exchange(self, outgoing: Sequence[Packed]) -> list[Packed]:
        """Send bytes from process to process, after their numbers to all."""
        if self.size == 1:
            return [*outgoing]
        device = torch.device("cpu") if "gloo" in dist.get_backend() else self._strategy.root_device
        others = [rank for rank in range(self.size) if rank != self.rank]
        once = {id(outgoing[rank]): outgoing[rank] for rank in others}  # one message, if all get the same
        written = {key: to_bytes(packed).to(device) for key, packed in once.items()}
        rows = {rank: written[id(outgoing[rank])] for rank in others}
        sizes = torch.tensor([len(rows[rank]) if rank in rows else 0 for rank in range(self.size)], device=device)
        of_all = [torch.empty_like(sizes) for _ in range(self.size)]
        dist.all_gather(of_all, sizes)
        received = {rank: torch.empty(int(of_all[rank][self.rank]), dtype=torch.uint8, device=device) for rank in others}
        sent = [dist.P2POp(dist.isend, rows[rank], rank) for rank in others if len(rows[rank])]
        awaited = [dist.P2POp(dist.irecv, row, rank) for rank, row in received.items() if len(row)]
        for work in dist.batch_isend_irecv([*sent, *awaited]) if sent or awaited else ():
            work.wait()
        return [outgoing[rank] if rank == self.rank else from_bytes(received[rank].cpu()) for rank in range(self.size)]

    def broadcast(self, value: Any) -> Any:
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        first = self.gather({"value": text} if self.rank == 0 else {})[0]
        return json.loads(first["value"].numpy().tobytes())


def to_bytes(packed: Packed) -> Tensor:
    """(n,) uint8 on the host: the length of a header, the header in JSON, then the values of each tensor; or empty.

    For each tensor the header has its name, type and shape, its dimensions in the order of their strides, the largest first,
    and its position in bytes after the header.
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
    """The inverse of :func:`to_bytes`, each tensor in separate memory: one that is kept does not keep the others."""
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
