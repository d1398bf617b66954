"""What data looks like on its way from a source to a client."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """What one step sees: inputs (B, ...) as the net takes them, targets (B,).

    Where batches of several sizes are stacked, the shorter ones are filled up with samples that do not count.
    """

    inputs: Tensor
    targets: Tensor
    real: Tensor | None = None  # (B,), false where a sample only fills up; None: all count
    places: Tensor | None = None  # (B,), of the samples in their client's shard; None where nobody asks for them

    def mean(self, values: Tensor) -> Tensor:
        """Mean of one value a sample, (B,), over the samples that count."""
        if self.real is None:
            return values.mean()
        return (values * self.real).sum() / self.real.sum()


@dataclass(frozen=True)
class Samples:
    """Inputs (n, ...) as stored, uint8 images (n, channels, height, width) or floats of any shape, and targets (n,)."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class Dataset:
    """A source, loaded: training samples, test samples (possibly none) and the names of the classes in label order.

    Raises:
        ValueError: if inputs and targets differ in length, inputs differ in shape, or a target is not the index of a class.
    """

    train: Samples
    test: Samples
    classes: tuple[str, ...]
    owners: Tensor | None = None
    """(n,) natural client of every training sample, counted from 0 (the writer of a digit, say); None: none is known."""
    sources: tuple[str, ...] | None = None
    """(C,) source that each class is of, where several are joined; None: all are of one."""

    def __post_init__(self) -> None:
        if len(self.test) > 0 and self.train.inputs.shape[1:] != self.test.inputs.shape[1:]:
            shapes = (tuple(part.inputs.shape[1:]) for part in (self.train, self.test))
            raise ValueError("data.source gives training inputs of shape {} and test inputs of {}: resize them".format(*shapes))
        if self.owners is not None and len(self.owners) != len(self.train):
            raise ValueError(
                f"data.source gives {len(self.train)} training samples and {len(self.owners)} owners: give one a sample"
            )
        for part, samples in (("training", self.train), ("test", self.test)):
            if samples.targets.ndim != 1:
                raise ValueError(
                    f"data.source gives {part} targets of shape {tuple(samples.targets.shape)}, must be (samples,): "
                    "give each sample the index of its class"
                )
            if len(samples.inputs) != len(samples.targets):
                raise ValueError(
                    f"data.source gives {len(samples.inputs)} {part} inputs and {len(samples.targets)} targets: "
                    "give one target a sample"
                )
            if samples.inputs.dtype == torch.uint8 and samples.inputs.ndim != 4:
                raise ValueError(
                    f"data.source gives {part} images of shape {tuple(samples.inputs.shape)}, must be "
                    "(samples, channels, height, width): add the missing dimension, or give floats"
                )
            outside = samples.targets[(samples.targets < 0) | (samples.targets >= len(self.classes))]
            if len(outside) > 0:
                raise ValueError(
                    f"data.source has the {part} label {int(outside[0])}, must be between 0 and {len(self.classes) - 1} "
                    f"for {len(self.classes)} classes: correct the labels or name more classes"
                )
