"""Plain iterables: unlike a DataLoader, they get no distributed sampler from Lightning."""

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from fl_lightning.protocol import Batch, NetInputs


class EvaluationInputs:
    """Inputs in evaluation mode, as the net takes them: made part by part, since all may not fit in memory.

    Args:
        read: maps the indices of each part to its batch.
        indices: indices of the samples, (n,).
    """

    def __init__(self, read: Callable[[Sequence[Tensor]], Iterator[Batch]], indices: Tensor) -> None:
        self._read, self._indices = read, indices

    def __len__(self) -> int:
        return len(self._indices)

    def split(self, size: int) -> Iterator[NetInputs]:
        """All inputs in order, ``size`` at a time, the rest in the last part; as ``Tensor.split``."""
        return (batch.inputs for batch in self._read(self._indices.split(size)))


class EvaluationBatches:
    """Samples in fixed order, in large batches, every ``world_size``-th batch for this rank: each sample exactly once.

    Args:
        read: maps the indices of each batch to the batches.
        indices: returns the indices of the samples, (n,), at the start of each pass.
        batch_size: samples of a batch; the last can be smaller.
        due: called at the start of each pass; if false, the pass is empty.
        rank, world_size: those of this process.
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
        if self.due() and len(indices := self.indices()) > 0:  # many nets cannot take an empty batch
            yield from self.read(indices.split(self.batch_size)[self.rank :: self.world_size])
