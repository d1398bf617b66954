"""How stored samples become what a net is given: each channel in units of its deviation about its mean."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor


def channel_scale(
    inputs: Tensor, change: Callable[[Tensor], Tensor], mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[Tensor, Tensor] | None:
    """Factor and summand, one a channel, that take changed inputs to normalised ones; None leaves inputs as they are.

    Args:
        inputs: (n, ...) training inputs as stored.
        change: what is done to them before they are normalised, without chance.
        mean, std: one value a channel, in [0, 1] for images; None: measured, where inputs are uint8 images.

    Raises:
        ValueError: if there is neither one value nor one a channel.
    """
    is_image = inputs.dtype == torch.uint8
    if mean is None and not is_image:
        return None
    channels = change(inputs[:1]).shape[1]
    if mean is not None:
        mean_, std_ = torch.tensor(mean), torch.tensor(std)
    else:
        # Images are measured as stored, since changes cost time, unless they mix channels; one value serves any number.
        same = inputs.shape[1] in (1, channels)
        mean_, std_ = _channel_statistics(part if same else change(part) for part in inputs.split(4096))
    if len(mean_) not in (1, channels):
        raise ValueError(f"data.mean has {len(mean_)} values, the data {channels} channels: give one a channel")
    unit = 255.0 if is_image else 1.0
    shape = (1, -1, *[1] * (inputs.ndim - 2))
    return (1 / (std_.double() * unit)).reshape(shape), (-mean_.double() / std_.double()).reshape(shape)


def _channel_statistics(parts: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel of uint8 images, scaled to [0, 1]; the deviation of a constant channel counts as 1."""
    # How often each of the 256 values occurs: whole numbers, exact and fast.
    counted = [torch.stack([channel.flatten().bincount(minlength=256) for channel in part.unbind(dim=1)]) for part in parts]
    counts = torch.stack(counted).sum(dim=0).double()
    values, count = torch.arange(256, dtype=torch.float64) / 255, counts.sum(dim=1)
    mean, square = counts @ values / count, counts @ values**2 / count
    std = (square - mean * mean).clamp_min(0).sqrt()
    return mean, torch.where(std > 1e-6, std, torch.ones_like(std))
