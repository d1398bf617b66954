"""How processes share a round: who fits whom, what is added up, and how clients' states travel."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Ranks:
    """The processes of a run; by default this one is alone.

    Args:
        rank: of this process, from 0.
        size: how many there are.
        sum: of a tensor over all processes.
        broadcast: what the first process has.
    """

    rank: int = 0
    size: int = 1
    sum: Callable[[Tensor], Tensor] = _as_it_is
    broadcast: Callable[[Any], Any] = _as_it_is

    def gather(self, part: Any) -> list[Any]:
        """What every process has, in every process; all must call it."""
        parts: list[Any] = [part]
        if self.size > 1:
            parts *= self.size
            torch.distributed.all_gather_object(parts, part)
        return parts

    def exchange(self, outgoing: Sequence[dict[int, Any]]) -> dict[int, Any]:
        """Send ``outgoing[r]`` to rank r; returns what all sent here, joined. All must call it."""
        incoming: dict[int, Any] = {}
        for source in range(self.size):
            received: list[Any] = [None]
            torch.distributed.scatter_object_list(received, list(outgoing) if self.rank == source else None, src=source)
            incoming.update(received[0])
        return incoming


def split_by_work(work: Sequence[float], num_ranks: int) -> list[list[int]]:
    """Positions for each rank, ascending: the largest piece of work goes first, each to the rank with the least so far.

    R. L. Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 1969: at most 4/3 of the best split.

    Args:
        work: of each position, any unit.
        num_ranks: at least 1.
    """
    shares: list[list[int]] = [[] for _ in range(num_ranks)]
    loads = [0.0] * num_ranks
    for position in sorted(range(len(work)), key=lambda position: -work[position]):
        least = loads.index(min(loads))
        shares[least].append(position)
        loads[least] += work[position]
    return [sorted(share) for share in shares]
