"""Random changes to whole batches of training images, on the device where the images lie.

torchvision's transforms draw from the global generator and treat a batch as one image, so these few lines are ours.
"""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor


class Augmentation(ABC):
    """A random change to a batch of images (B, channels, height, width) as stored, before normalisation."""

    @abstractmethod
    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Changed images of the same shape and dtype; every draw comes from ``generator`` (a CPU generator)."""


class RandomCrop(Augmentation):
    """Pad with black on all sides, then cut the old size out at a random place, another for every image.

    Args:
        padding: pixels added on each side, at least 1.
    """

    def __init__(self, padding: int = 4) -> None:
        if padding < 1:
            raise ValueError(f"data.augment RandomCrop.padding is {padding}, must be at least 1: leave RandomCrop out instead")
        self.padding = padding

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        count, _, height, width = images.shape
        offsets = torch.randint(0, 2 * self.padding + 1, (2, count), generator=generator).to(images.device)
        padded = F.pad(images, [self.padding] * 4)
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: (B, channels, place, place, height, width)
        return windows[torch.arange(count, device=images.device), :, offsets[0], offsets[1]]


class RandomHorizontalFlip(Augmentation):
    """Mirror each image left to right with probability one half."""

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        flip = torch.rand(len(images), generator=generator) < 0.5
        return torch.where(flip.to(images.device)[:, None, None, None], images.flip(-1), images)
