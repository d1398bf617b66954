"""ResNet-18 for 32x32 images, as listed in Appendix B of Legate's thesis.

He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, with a 3x3 stem, a bias in every convolution
and three choices of normalisation. Departure: the listing prints ``BatchNorm2d(64)`` in stages of 128 to 512 channels, which
cannot run; the norms have their stage's width. The final 3x3 pooling of stride 2 sees only the top-left 3x3 of the 4x4 map, as
in the listing.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from fl_lightning.checks import check_choice
from fl_lightning.models.network import Network, image_shape

Norm = Literal["group", "batch", "mix"]
_MakeNorm = Callable[[int], nn.Module]  # from a number of channels

_group_norm = partial(nn.GroupNorm, 2)
# First norm of a block (and the stem's), then second norm (and the shortcut's).
_NORMS: dict[str, tuple[_MakeNorm, _MakeNorm]] = {
    "group": (_group_norm, _group_norm),
    "batch": (nn.BatchNorm2d, nn.BatchNorm2d),
    "mix": (nn.BatchNorm2d, _group_norm),
}


class ResNet18(Network):
    """ResNet-18 with group, batch or mixed normalisation; 11,178,762 parameters for 3 channels and 10 classes.

    Args:
        input_shape: (channels, height, width), height and width at least 17.
        num_classes: at least 1.
        norm: ``group`` (GroupNorm, 2 groups), ``batch``, or ``mix``: BatchNorm first and GroupNorm second in each block.

    Raises:
        ValueError: if ``norm`` is unknown or the images are too small.
    """

    def __init__(self, input_shape: Sequence[int], num_classes: int, norm: Norm = "group") -> None:
        super().__init__()
        check_choice("model.net.norm", norm, Norm)
        channels, height, width = image_shape("ResNet18", input_shape, 17, cure="use CNN2 or MLP")
        first, second = _NORMS[norm]
        blocks: list[nn.Module] = []
        fan_in = 64
        for fan_out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [_Block(fan_in, fan_out, stride, first, second), _Block(fan_out, fan_out, 1, first, second)]
            fan_in = fan_out
        self.stem = nn.Sequential(nn.Conv2d(channels, 64, 3, padding=1), first(64), nn.ReLU())
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.Sequential(nn.AvgPool2d(3, stride=2), nn.Flatten())
        pooled = [((size + 7) // 8 - 3) // 2 + 1 for size in (height, width)]
        self.classifier = nn.Linear(512 * pooled[0] * pooled[1], num_classes)

    def features(self, images: Tensor) -> Tensor:
        """The inputs of the class layer, (B, features)."""
        return self.pool(self.blocks(self.stem(images)))


class _Block(nn.Module):
    def __init__(self, fan_in: int, fan_out: int, stride: int, first: _MakeNorm, second: _MakeNorm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(fan_in, fan_out, 3, stride=stride, padding=1)
        self.norm1 = first(fan_out)
        self.conv2 = nn.Conv2d(fan_out, fan_out, 3, padding=1)
        self.norm2 = second(fan_out)
        self.shortcut = nn.Sequential()
        if stride != 1 or fan_in != fan_out:
            self.shortcut = nn.Sequential(nn.Conv2d(fan_in, fan_out, 1, stride=stride), second(fan_out))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(inputs)))
        return F.relu(self.norm2(self.conv2(hidden)) + self.shortcut(inputs))
