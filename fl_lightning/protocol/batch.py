"""The batch of one local step."""

from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._pytree import tree_map_only

NetInputs = Any
"""What a net is called with: a tensor (B, ...), or a dict or tuple of such tensors, its arguments by name or in order."""


class Batch(NamedTuple):
    """Inputs (B, ...) as the net takes them, targets (B,).

    When batches of several sizes are stacked, the shorter ones are padded with samples that do not count.
    """

    inputs: NetInputs
    targets: Tensor
    real: Tensor | None = None  # (B,), false for padding samples; None: all count
    sample_indices: Tensor | None = None  # (B,), of the samples in their client's shard; None unless the method asks for them

    def mean(self, values: Tensor) -> Tensor:
        """Mean of one value per sample, (B,), over the samples that count."""
        values = self.checked(values)
        if self.real is None:
            return values.mean()
        return (values * self.real).sum() / self.real.sum()

    def checked(self, losses: Tensor) -> Tensor:
        """Losses as they are.

        Raises:
            ValueError: if they are not one value per sample, (B,).
        """
        shape = getattr(losses, "shape", None)  # a hook can return anything
        if shape != self.targets.shape[:1]:
            found = f"{losses!r}" if shape is None else f"a tensor of shape {tuple(shape)}"
            raise ValueError(
                f"model.loss, or client_loss of the method, gives {found} for "
                f"{len(self.targets)} samples, must be ({len(self.targets)},), one value per sample: use reduction='none', and "
                "take the mean over further dimensions"
            )
        return losses

    @property
    def num_samples(self) -> int | Tensor:
        """Samples that count."""
        return len(self.targets) if self.real is None else self.real.sum()

    def split(self, size: int) -> list["Batch"]:
        """Batches of at most this many samples."""
        rows = [slice(first, first + size) for first in range(0, len(self.targets), size)]
        return [tree_map_only(Tensor, lambda part, some=some: part[some], self) for some in rows]


class PlannedStep(NamedTuple):
    """The plan of a client's local step, before the samples are read; tensors on the device that trains."""

    samples: Tensor  # (1, B), indices into the training samples
    counters: Tensor  # (1, B), the position of every sample in the visit, an address for augmentation's draws
    key: Tensor | None = None  # (1,), of the client's draws of augmentation; None: nothing is augmented
    real: Tensor | None = None  # (1, B), as of batches
    positions: Tensor | None = None  # (1, B), of the samples in their client's shard; None unless the method asks for them
    inputs: NetInputs | None = None  # (B, ...) as stored, of streamed samples; None: they are on the device
