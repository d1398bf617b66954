"""The distribution of a round over processes, and the exchange between them."""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from fl_lightning.protocol import Packed


class Ranks(Protocol):
    """The processes that share a run's cohorts, and the exchange between them.

    All processes call the same methods in the same order. ``processes.process_group`` implements it with torch.distributed; a
    federation's sites can use their own connection.

    Attributes:
        rank: rank of this process, from 0.
        size: number of processes.
    """

    rank: int
    size: int

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum of a tensor over all processes, in all of them; can change the tensor."""
        ...

    def gather(self, part: Packed) -> list[Packed]:
        """The values of all processes, in every process, in rank order; tensors of other processes are on the host."""
        return self.exchange([part] * self.size)

    def exchange(self, outgoing: Sequence[Packed]) -> list[Packed]:
        """Send ``outgoing[r]`` to process r; returns the values sent here, in rank order, as :meth:`gather` does."""
        ...

    def broadcast(self, value: Any) -> Any:
        """The plain value of the first process, as JSON has it, in every process."""
        ...


class OneProcess(Ranks):
    """The ranks of a run in only this process."""

    rank, size = 0, 1

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def exchange(self, outgoing: Sequence[Packed]) -> list[Packed]:
        return [*outgoing]

    def broadcast(self, value: Any) -> Any:
        return value


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
