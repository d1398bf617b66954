"""Plain iterables: Lightning leaves them alone where it would give a DataLoader a distributed sampler."""

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from fl_lightning.protocol import Batch


class EvaluationInputs:
    """Inputs in evaluation mode, as the net takes them: made part by part, since all of them may not fit in memory.

    Args:
        read: from the indices of each part to its batch.
        indices: which samples, (n,).
    """

    def __init__(self, read: Callable[[Sequence[Tensor]], Iterator[Batch]], indices: Tensor) -> None:
        self._read, self._indices = read, indices

    def __len__(self) -> int:
        return len(self._indices)

    def split(self, size: int) -> Iterator[Tensor]:
        """All inputs in order, ``size`` at a time, the last part as many as are left; as ``Tensor.split``."""
        return (batch.inputs for batch in self._read(self._indices.split(size)))


class EvaluationBatches:
    """Some samples in fixed order, in large batches, every ``world_size``-th batch for this rank: none twice, none left out.

    Args:
        read: from the indices of each batch to the batches.
        indices: asked at the start of each pass which samples, (n,).
        batch_size: samples of a batch; the last may be smaller.
        due: asked at the start of each pass; if false the pass is empty.
        rank, world_size: of this process.
    """

    def __init__(
        self,
        read: Callable[[Sequence[Tensor]], Iterator[Batch]],
        indices: Callable[[], Tensor],
        batch_size: int,
        due: Callable[[], bool],
        rank: int,
        world_size: int,
    ) -> None:
        self.read, self.indices, self.batch_size, self.due = read, indices, batch_size, due
        self.rank, self.world_size = rank, world_size

    def __iter__(self) -> Iterator[Batch]:
        if self.due():
            yield from self.read(self.indices().split(self.batch_size)[self.rank :: self.world_size])
