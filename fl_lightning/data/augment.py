"""Changes to whole batches of images, on their device.

torchvision's random transforms draw from the global generator and treat a batch as one image, so these are implemented here.
Changes that draw nothing use torchvision.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
import torchvision.transforms.v2.functional as transforms
from torch import Tensor

from fl_lightning.checks import check_each, check_whole


class Augmentation(ABC):
    """A change to a batch of images (B, channels, height, width) as stored, before normalisation."""

    num_draws: int = 0
    """Number of random numbers for one image."""

    @abstractmethod
    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """Changed training images, all of one shape.

        Args:
            images: (B, channels, height, width).
            draws: (B, num_draws), integers uniform over [0, 2^63): the only source of randomness.
        """

    def evaluate(self, images: Tensor) -> Tensor:
        """Images for evaluation, of the same shape as those for training; unchanged by default."""
        return images


class _WithoutChance(Augmentation):
    """A change that is the same for training and evaluation."""

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        return self.evaluate(images)


class RandomCrop(Augmentation):
    """Pad with black on all sides, then cut out a part at a random offset, a separate one for each image.

    In evaluation, keep the middle of the image.

    Args:
        padding: pixels added on each side.
        size: height and width of the part; by default those of the image before padding.

    Raises:
        ValueError: if nothing would be random, or ``size`` is below 1.
    """

    num_draws = 2

    def __init__(self, padding: int = 4, size: int | None = None) -> None:
        least = 1 if size is None else 0
        check_whole("data.augment RandomCrop.padding", padding, at_least=least, hint="leave RandomCrop out instead")
        self.padding, self.size = padding, None if size is None else _check_size("RandomCrop", size)

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        height, width = self._part(images)
        padded = F.pad(images, [self.padding] * 4)
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: (B, channels, top, left, height, width)
        top, left = draws[:, 0] % windows.shape[2], draws[:, 1] % windows.shape[3]
        return windows[torch.arange(len(images), device=images.device), :, top, left]

    def evaluate(self, images: Tensor) -> Tensor:
        height, width = self._part(images)
        return transforms.center_crop(images, [height, width]) if self.size else images

    def _part(self, images: Tensor) -> tuple[int, int]:
        height, width = (self.size, self.size) if self.size else images.shape[2:]
        if images.shape[2] + 2 * self.padding < height or images.shape[3] + 2 * self.padding < width:
            raise ValueError(
                f"data.augment RandomCrop.size is {self.size}, larger than the images of "
                f"{images.shape[2]}x{images.shape[3]} with their padding of {self.padding}: put a Resize before it"
            )
        return height, width


class RandomHorizontalFlip(Augmentation):
    """Mirror each image left to right with probability one half; nothing in evaluation."""

    num_draws = 1

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        return torch.where((draws % 2 == 1)[:, :, None, None], images.flip(-1), images)


class Cutout(Augmentation):
    """Cover a square of each image (DeVries, Taylor, arXiv 1708.04552); nothing in evaluation.

    Its middle is uniform over the pixels of the image, so a part of it can be outside.

    Args:
        size: height and width of the square, in pixels.
        fill: its colour, a number in [0, 1] for each channel; by default black. The mean with which the images are normalised
            becomes 0 at the net, as in the paper.

    Raises:
        ValueError: if ``size`` is below 1 or ``fill`` is not a colour; at a call, if the images have another number of channels
            than ``fill``.
    """

    num_draws = 2

    def __init__(self, size: int = 16, fill: Sequence[float] | None = None) -> None:
        if fill is not None and len(fill) == 0:
            raise ValueError("data.augment Cutout.fill is [], must have one number a channel: null is black")
        check_each("data.augment Cutout.fill", fill or (), at_least=0, at_most=1, hint="one a channel, null is black")
        self.size, self.fill = _check_size("Cutout", size), fill

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        rows, columns = (self._covered(draws[:, i], images.shape[2 + i]) for i in range(2))
        covered, channels = rows[:, :, None] & columns[:, None, :], images.unbind(dim=1)
        colours = zip(channels, self._colour(images), strict=True)
        return torch.stack([channel.masked_fill(covered, value) for channel, value in colours], dim=1)

    def _covered(self, draws: Tensor, length: int) -> Tensor:
        """(B, length), of rows or columns."""
        pixels = torch.arange(length, device=draws.device)
        first = (draws % length - self.size // 2)[:, None]
        return (pixels >= first) & (pixels < first + self.size)

    def _colour(self, images: Tensor) -> list[float]:
        """The colour in units of the stored images, a number per channel."""
        fill = [0.0] * images.shape[1] if self.fill is None else self.fill
        if len(fill) != images.shape[1]:
            raise ValueError(
                f"data.augment Cutout.fill has {len(fill)} numbers, but the images have {images.shape[1]} channels: give one "
                "for each"
            )
        return [round(255 * part) for part in fill] if images.dtype == torch.uint8 else list(fill)


class RandomResizedCrop(Augmentation):
    """Cut a random part out of each image and scale it to one size (Szegedy et al., CVPR 2015), bilinear.

    The part's area is uniform over ``scale`` of the image's, its width to height log-uniform over [3/4, 4/3], its offset
    uniform; a side that would exceed the image is cut to it. In evaluation, the middle square is scaled.

    Args:
        size: height and width of the result.
        scale: smallest and largest area of the part, as a fraction of the image.

    Raises:
        ValueError: if ``size`` is below 1 or ``scale`` is not a range within (0, 1].
    """

    num_draws = 4

    def __init__(self, size: int, scale: Sequence[float] = (0.08, 1.0)) -> None:
        if len(scale) != 2 or not 0 < scale[0] <= scale[1] <= 1:
            raise ValueError(
                f"data.augment RandomResizedCrop.scale is {list(scale)}, must be two fractions, 0 < low <= high <= 1"
            )
        self.size, self.scale = _check_size("RandomResizedCrop", size), tuple(scale)

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        height, width = images.shape[2:]
        area, shape, top, left = (draws.double() / 2**63).unbind(dim=1)
        area = (self.scale[0] + area * (self.scale[1] - self.scale[0])) * height * width
        ratio = ((2 * shape - 1) * math.log(4 / 3)).exp()
        tall, wide = (area / ratio).sqrt().clamp_max(height), (area * ratio).sqrt().clamp_max(width)
        # grid_sample counts from -1 to 1 across the image: a factor and the middle of the part for each axis.
        affine = torch.zeros(len(images), 2, 3, dtype=torch.float64, device=images.device)
        for axis, (part, whole, offset) in enumerate(((wide, width, left), (tall, height, top))):
            affine[:, axis, axis] = part / whole
            affine[:, axis, 2] = (2 * offset - 1) * (1 - part / whole)
        grid = F.affine_grid(affine.float(), [len(images), images.shape[1], self.size, self.size], align_corners=False)
        return _like(F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False), images)

    def evaluate(self, images: Tensor) -> Tensor:
        middle = transforms.center_crop(images, [min(images.shape[2:])] * 2)
        return transforms.resize(middle, [self.size, self.size], antialias=True)


class Resize(_WithoutChance):
    """Scale the shorter side to ``size``, bilinear and antialiased; the proportions stay."""

    def __init__(self, size: int) -> None:
        self.size = _check_size("Resize", size)

    def evaluate(self, images: Tensor) -> Tensor:
        return transforms.resize(images, [self.size], antialias=True)


class CenterCrop(_WithoutChance):
    """Keep the middle of ``size`` by ``size`` pixels; smaller images are padded with black."""

    def __init__(self, size: int) -> None:
        self.size = _check_size("CenterCrop", size)

    def evaluate(self, images: Tensor) -> Tensor:
        return transforms.center_crop(images, [self.size, self.size])


class Pad(_WithoutChance):
    """Add ``padding`` black pixels on every side: MNIST's 28 to 32 with 2."""

    def __init__(self, padding: int) -> None:
        check_whole("data.augment Pad.padding", padding, at_least=1, hint="leave Pad out instead")
        self.padding = padding

    def evaluate(self, images: Tensor) -> Tensor:
        return F.pad(images, [self.padding] * 4)


class ToRGB(_WithoutChance):
    """Three channels: a grey one is repeated."""

    def evaluate(self, images: Tensor) -> Tensor:
        _check_channels("ToRGB", images)
        return images if images.shape[1] == 3 else images.expand(-1, 3, -1, -1)


class Grayscale(_WithoutChance):
    """One channel: .299 red + .587 green + .114 blue."""

    def evaluate(self, images: Tensor) -> Tensor:
        _check_channels("Grayscale", images)
        if images.shape[1] == 1:
            return images
        red, green, blue = images.float().split(1, dim=1)  # torchvision truncates, so white would not stay white
        return _like(0.299 * red + 0.587 * green + 0.114 * blue, images)


def _check_size(name: str, size: int) -> int:
    check_whole(f"data.augment {name}.size", size, at_least=1, hint="height and width in pixels")
    return size


def _check_channels(name: str, images: Tensor) -> None:
    if images.shape[1] not in (1, 3):
        raise ValueError(f"data.augment {name}: the images have {images.shape[1]} channels, must be 1 or 3: leave it out")


def _like(values: Tensor, images: Tensor) -> Tensor:
    """Values in the dtype of the stored images, rounded for whole numbers."""
    if images.is_floating_point():
        return values.to(images.dtype)
    return (values.round().clamp(0, 255) if images.dtype == torch.uint8 else values.round()).to(images.dtype)
