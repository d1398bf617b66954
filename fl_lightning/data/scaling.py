"""The scaling of stored samples for a net: each channel in units of its deviation about its mean."""

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fl_lightning.checks import check_each
from fl_lightning.data.samples import are_whole, in_parts
from fl_lightning.protocol import NetInputs


class ChannelStatistics(NamedTuple):
    """Mean and deviation of each channel, float64 (channels,) or (1,): in [0, 1] for images, else in units of the inputs."""

    mean: Tensor
    std: Tensor

    def scale(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Factor and summand that turn augmented inputs into normalised ones.

        Args:
            inputs: (n, channels, ...), with the dtype and the number of dimensions of stored inputs.
        """
        unit = 255.0 if inputs.dtype == torch.uint8 else 1.0
        shape = (1, -1, *[1] * (inputs.ndim - 2))
        return (1 / (self.std * unit)).reshape(shape), (-self.mean / self.std).reshape(shape)


class InputRecord(NamedTuple):
    """The inputs that a net was trained on, in plain values, for the use of a checkpoint's net.

    ``mean`` and ``std`` have one value per channel, or one for all, in [0, 1] for images; None if inputs are used unchanged.
    """

    shape: Any  # of one sample as stored, before ``data.augment``; a dict or tuple of shapes if a net takes several tensors
    net_shape: Any  # of one sample as the net takes it
    dtype: Any  # as stored: uint8 for images
    mean: list[float] | None
    std: list[float] | None
    classes: list[str]  # in label order
    outputs: int | None = None  # of a net that tells something else than classes

    @property
    def input_shape(self) -> Any:
        """``net_shape`` as :attr:`fl_lightning.FederatedDataModule.input_shape` gives it."""
        return _shape(self.net_shape)

    @property
    def statistics(self) -> ChannelStatistics | None:
        """``mean`` and ``std`` as float64 tensors; None if inputs are used unchanged."""
        if self.mean is None:
            return None
        return ChannelStatistics(*(torch.tensor(part, dtype=torch.float64) for part in (self.mean, self.std)))

    def examples(self, count: int) -> NetInputs:
        """(count, ...) inputs of zeros, in the shape and dtype of stored ones."""
        return tree_map(lambda dtype, shape: torch.zeros(count, *shape, dtype=getattr(torch, dtype)), self.dtype, self.shape)


def _shape(stored: Any) -> Any:
    if isinstance(stored, dict):
        return {name: _shape(shape) for name, shape in stored.items()}
    return tuple(_shape(part) if isinstance(part, list) else part for part in stored)


def recorded_inputs(checkpoint: dict[str, Any]) -> InputRecord:
    """The inputs that the net of a checkpoint was trained on."""
    return InputRecord(**checkpoint["federated"]["inputs"])


def check_same_inputs(trained_on: InputRecord, given: InputRecord, key: str = "ckpt_path") -> None:
    """Check that a net gets inputs like those it was trained on; warns if its classes had other names.

    Args:
        trained_on: inputs in the net's checkpoint.
        given: inputs of the data for the net, with given or measured statistics.
        key: the option that gives the checkpoint, for messages.

    Raises:
        ValueError: naming ``data.mean`` and ``data.std`` with both values, if they differ.
    """
    if trained_on.classes != given.classes and given.outputs is None:
        warnings.warn(
            f"the data has the classes {', '.join(given.classes)}, but the net of {key} was trained on "
            f"{', '.join(trained_on.classes)}: classes are compared by their numbers",
            stacklevel=1,
        )
    if _near(trained_on.mean, given.mean) and _near(trained_on.std, given.std):
        return
    mean, std, cure = _typed(trained_on.mean), _typed(trained_on.std), "leave both out"
    if trained_on.mean is not None:
        cure = f"{cure} where the data is the same, or give --data.mean {mean} --data.std {std}"
    raise ValueError(
        f"data.mean and data.std are, given or measured, {_typed(given.mean)} and {_typed(given.std)}, but the net of "
        f"{key} was trained with {mean} and {std}: {cure}"
    )


def _near(one: Sequence[float] | None, other: Sequence[float] | None) -> bool:
    """Whether both are equal, up to differences between the measurements of two machines."""
    if one is None or other is None or len(one) != len(other):
        return one is other
    return all(math.isclose(*pair, rel_tol=1e-6, abs_tol=1e-9) for pair in zip(one, other, strict=True))


def _typed(values: Sequence[float] | None) -> str:
    """Values as one word of a command line, with the digits of a float32."""
    return "null" if values is None else f"[{','.join(f'{value:.7g}' for value in values)}]"


def check_statistics(mean: Sequence[float] | None, std: Sequence[float] | None) -> None:
    """Raise a ValueError unless both are given or neither, with one finite value per channel each, deviations above 0."""
    if (mean is None) != (std is None):
        raise ValueError(f"data.mean is {mean} and data.std is {std}: give both or neither")
    if mean is None or std is None:
        return
    if not len(mean) == len(std) >= 1:
        raise ValueError(f"data.mean is {list(mean)} and data.std is {list(std)}, must have one value a channel each")
    if not all(map(math.isfinite, mean)):
        raise ValueError(f"data.mean is {list(mean)}, must be finite in every channel")
    check_each("data.std", std, above=0, below=math.inf)


def channel_statistics(
    inputs: Tensor, change: Callable[[Tensor], Tensor], mean: Sequence[float] | None, std: Sequence[float] | None
) -> ChannelStatistics | None:
    """The statistics for the normalisation of inputs; None: they are used unchanged.

    Args:
        inputs: (n, ...) training inputs as stored.
        change: changes to them before they are normalised, without randomness.
        mean, std: one value per channel, in [0, 1] for images; None: measured, if inputs are uint8 images.

    Raises:
        ValueError: if there is neither one value nor one per channel.
    """
    if mean is None and inputs.dtype != torch.uint8:
        return None
    if inputs.ndim < 2:
        raise ValueError(f"data.mean is {mean}, but samples are single numbers, without channels: give inputs (samples, 1)")
    channels = change(inputs[:1]).shape[1]
    if mean is not None:
        statistics = ChannelStatistics(torch.tensor(mean).double(), torch.tensor(std).double())
    else:
        # Images are measured as stored, since changes cost time, unless these mix channels; one value fits any number.
        same = inputs.shape[1] in (1, channels)
        statistics = _measured(part if same else change(part) for part in in_parts(inputs))
    if len(statistics.mean) not in (1, channels):
        raise ValueError(f"data.mean has {len(statistics.mean)} values, the data {channels} channels: give one a channel")
    return statistics


def normalise(inputs: Tensor, scale: tuple[Tensor, Tensor] | None, dtype: torch.dtype) -> Tensor:
    """Augmented inputs as the net takes them; whole numbers other than images, such as token ids, do not change.

    Args:
        inputs: (n, channels, ...).
        scale: result of :meth:`ChannelStatistics.scale`, in ``dtype``; None: only the dtype changes.
    """
    if are_whole(inputs):
        return inputs
    inputs = inputs.to(dtype)
    return inputs if scale is None else torch.addcmul(scale[1], inputs, scale[0])


def _measured(parts: Iterable[Tensor]) -> ChannelStatistics:
    """Mean and deviation of each channel of uint8 images, scaled to [0, 1]; the deviation of a constant channel counts as 1."""
    # Counts of each of the 256 values, which are exact and fast. No part's counts are kept: small tensors between large ones
    # that are freed left gaps in the heap, which grew by up to a third of the images.
    counted = (torch.stack([channel.flatten().bincount(minlength=256) for channel in part.unbind(dim=1)]) for part in parts)
    counts = reduce(torch.add, counted).double()
    values, count = torch.arange(256, dtype=torch.float64) / 255, counts.sum(dim=1)
    mean, square = counts @ values / count, counts @ values**2 / count
    std = (square - mean * mean).clamp_min(0).sqrt()
    return ChannelStatistics(mean, torch.where(std > 1e-6, std, torch.ones_like(std)))
