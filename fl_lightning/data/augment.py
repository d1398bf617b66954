"""Random changes to whole batches of training images, on the device where the images lie.

torchvision's transforms draw from the global generator and treat a batch as one image, so these few lines are ours.
"""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor


class Augmentation(ABC):
    """A random change to a batch of images (B, channels, height, width) as stored, before normalisation."""

    num_draws: int
    """Random numbers that one image takes."""

    @abstractmethod
    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """Changed images of the same shape and dtype.

        Args:
            images: (B, channels, height, width).
            draws: (B, num_draws), integers uniform over [0, 2^63): the only source of randomness.
        """


class RandomCrop(Augmentation):
    """Pad with black on all sides, then cut the old size out at a random place, another for every image.

    Args:
        padding: pixels added on each side, at least 1.
    """

    num_draws = 2

    def __init__(self, padding: int = 4) -> None:
        if padding < 1:
            raise ValueError(f"data.augment RandomCrop.padding is {padding}, must be at least 1: leave RandomCrop out instead")
        self.padding = padding

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        height, width = images.shape[2:]
        top, left = (draws % (2 * self.padding + 1)).unbind(dim=1)
        padded = F.pad(images, [self.padding] * 4)
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: (B, channels, place, place, height, width)
        return windows[torch.arange(len(images), device=images.device), :, top, left]


class RandomHorizontalFlip(Augmentation):
    """Mirror each image left to right with probability one half."""

    num_draws = 1

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        return torch.where((draws % 2 == 1)[:, :, None, None], images.flip(-1), images)
