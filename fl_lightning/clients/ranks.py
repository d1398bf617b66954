"""How processes share a round: who fits whom, and how clients' states travel."""

from collections.abc import Sequence
from typing import Any

import torch


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


def exchange(outgoing: Sequence[dict[int, Any]]) -> dict[int, Any]:
    """Send ``outgoing[r]`` to rank r; returns what all ranks sent here, joined. Every rank must call it."""
    incoming: dict[int, Any] = {}
    for source in range(len(outgoing)):
        received: list[Any] = [None]
        is_source = torch.distributed.get_rank() == source
        torch.distributed.scatter_object_list(received, list(outgoing) if is_source else None, src=source)
        incoming.update(received[0])
    return incoming
