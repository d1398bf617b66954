"""Plain iterables: Lightning leaves them alone where it would give a DataLoader a distributed sampler."""

import itertools
from collections.abc import Callable, Iterator

from torch import Tensor

from fl_lightning.data.samples import Batch


class Rounds:
    """Round numbers without end, from ``first``; a resumed run starts from the round after its ``global_step``."""

    def __init__(self, first: int) -> None:
        self.first = first

    def __iter__(self) -> Iterator[int]:
        return itertools.count(self.first)


class EvaluationBatches:
    """Some samples in fixed order, in large batches, every ``world_size``-th batch for this rank: none twice, none left out.

    Args:
        read: gives the batch of some indices.
        indices: which samples, (n,).
        batch_size: samples of a batch; the last may be smaller.
        due: asked at the start of each pass; if false the pass is empty.
        rank, world_size: of this process.
    """

    def __init__(
        self,
        read: Callable[[Tensor], Batch],
        indices: Tensor,
        batch_size: int,
        due: Callable[[], bool],
        rank: int,
        world_size: int,
    ) -> None:
        self.read, self.indices, self.batch_size, self.due = read, indices, batch_size, due
        self.rank, self.world_size = rank, world_size

    def __iter__(self) -> Iterator[Batch]:
        if self.due():
            yield from map(self.read, self.indices.split(self.batch_size)[self.rank :: self.world_size])
