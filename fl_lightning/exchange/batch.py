"""What one local step sees."""

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """Inputs (B, ...) as the net takes them, targets (B,).

    Where batches of several sizes are stacked, the shorter ones are filled up with samples that do not count.
    """

    inputs: Tensor
    targets: Tensor
    real: Tensor | None = None  # (B,), false where a sample only fills up; None: all count
    sample_indices: Tensor | None = None  # (B,), of the samples in their client's shard; None where nobody asks for them

    def mean(self, values: Tensor) -> Tensor:
        """Mean of one value a sample, (B,), over the samples that count."""
        if self.real is None:
            return values.mean()
        return (values * self.real).sum() / self.real.sum()
