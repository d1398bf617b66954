"""Plain iterables: unlike a DataLoader, they get no distributed sampler from Lightning."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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


@dataclass(eq=False)
class EvaluationBatches:
    """Samples in fixed order, in large batches, every ``world_size``-th batch for this rank: each sample exactly once."""

    read: Callable[[Sequence[Tensor]], Iterator[Batch]]  # maps the indices of each batch to the batches
    indices: Callable[[], Tensor]  # returns those of the samples, (n,), at the start of each pass
    batch_size: int  # the last can be smaller
    due: Callable[[], bool]  # called at the start of each pass; if false, the pass is empty
    rank: int
    world_size: int

    def __iter__(self) -> Iterator[Batch]:
        if self.due() and len(indices := self.indices()) > 0:  # many nets cannot take an empty batch
            yield from self.read(indices.split(self.batch_size)[self.rank :: self.world_size])
