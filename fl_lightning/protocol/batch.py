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


class PlannedStep(NamedTuple):
    """What a client's local step will see, before the samples are read; tensors on the device that trains."""

    samples: Tensor  # (1, B), indices into the training samples
    counters: Tensor  # (1, B), the position of every sample in the visit, by which augmentation draws
    key: Tensor | None = None  # (1,), of the client's draws of augmentation; None: nothing is augmented
    real: Tensor | None = None  # (1, B), as of batches
    positions: Tensor | None = None  # (1, B), of the samples in their client's shard; None where nobody asks for them
    inputs: Tensor | None = None  # (B, ...) as stored, of samples that are streamed; None: they lie on the device
