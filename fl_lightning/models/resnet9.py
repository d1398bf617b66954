"""ResNet-9 without normalisation, as FedReg trains it on CIFAR, or with group norms.

Xu, Hong, Huang, Jiang, "Acceleration of Federated Learning with Alleviated Forgetting in Local Training", ICLR 2022. Scalars
and initial weights after Zhang, Dauphin, Ma, "Fixup Initialization: Residual Learning Without Normalization", ICLR 2019.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_lightning.models.network import Network, image_shape

_NUM_BLOCKS = 2


class ResNet9(Network):
    """ResNet-9 with Fixup; 6,568,673 parameters for 3 channels and 10 classes, 6,614,843 for 100.

    conv 3x3 to 64, ReLU; conv to 128, ReLU, max pool 2, residual block; conv to 256, ReLU, max pool 2; conv to 512, ReLU, max
    pool 2, residual block; max pool 4; linear to classes. ``width`` scales all of these numbers. Convolutions have no bias;
    there are scalars before and after them, and one before the class layer. The class layer and the second convolution of a
    block start at zero: only the class layer has a gradient in the first step. With ``norm_groups``, a GroupNorm follows each
    convolution in place of the scalars, and no convolution starts at zero.

    Args:
        input_shape: (channels, height, width), height and width at least 32.
        num_classes: at least 1.
        width: channels of the first convolution, at least 1; the paper has 64.
        norm_groups: number of groups, a divisor of ``width``, of each GroupNorm; by default no norms, as in the paper.

    Raises:
        ValueError: if the input is not an image or too small, ``width`` is below 1, or ``norm_groups`` is not a divisor of it.
    """

    def __init__(self, input_shape: Sequence[int], num_classes: int, width: int = 64, norm_groups: int | None = None) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"model.net.width is {width}, must be at least 1")
        if norm_groups is not None and (norm_groups < 1 or width % norm_groups):
            raise ValueError(f"model.net.norm_groups is {norm_groups}, must be a divisor of model.net.width, which is {width}")
        cure = "use CNN2 or add fl_lightning.data.Pad to data.augment"
        channels, rows, columns = image_shape("ResNet9", input_shape, 32, cure=cure)
        conv = _ScaledConv if norm_groups is None else partial(_normed_conv, norm_groups)
        block = _Block if norm_groups is None else partial(_NormedBlock, norm_groups)
        # ReLU after the pooling gives the same bits, from a quarter of the entries.
        self.features = nn.Sequential(
            conv(channels, width),
            nn.ReLU(),
            conv(width, 2 * width),
            nn.MaxPool2d(2),
            nn.ReLU(),
            block(2 * width),
            conv(2 * width, 4 * width),
            nn.MaxPool2d(2),
            nn.ReLU(),
            conv(4 * width, 8 * width),
            nn.MaxPool2d(2),
            nn.ReLU(),
            block(8 * width),
            nn.MaxPool2d(4),
            nn.Flatten(),
            *([_Shift()] if norm_groups is None else []),
        )
        self.classifier = nn.Linear(8 * width * (rows // 32) * (columns // 32), num_classes)
        nn.init.zeros_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)


class _Shift(nn.Module):
    """``x + b`` with one scalar b, 0 at first."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.bias


class _ScaledConv(nn.Module):
    """``conv(x + b1) * s + b2``: a 3x3 convolution from ``fan_in`` to ``fan_out`` channels, scalars b1, b2 and s."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.shift = _Shift()
        self.conv = _conv3x3(fan_in, fan_out, std=_std(fan_out))
        self.scale = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.conv(self.shift(inputs)) * self.scale + self.bias


class _Block(nn.Module):
    """``relu(x + conv2(relu(conv1(x + b1) + b2) + b3) * s + b4)``, which is relu(x) at first."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.shift = _Shift()
        self.conv1 = _conv3x3(channels, channels, std=_std(channels) / math.sqrt(_NUM_BLOCKS))
        self.bias = nn.Parameter(torch.zeros(1))
        self.conv2 = _ScaledConv(channels, channels)
        nn.init.zeros_(self.conv2.conv.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = F.relu(self.conv1(self.shift(inputs)) + self.bias)
        return F.relu(inputs + self.conv2(hidden))


def _normed_conv(norm_groups: int, fan_in: int, fan_out: int) -> nn.Sequential:
    """A 3x3 convolution and its norm."""
    conv = _conv3x3(fan_in, fan_out, std=_std(fan_out))
    return nn.Sequential(OrderedDict(conv=conv, norm=nn.GroupNorm(norm_groups, fan_out)))


class _NormedBlock(nn.Module):
    """``relu(x + conv2(relu(conv1(x))))``."""

    def __init__(self, norm_groups: int, channels: int) -> None:
        super().__init__()
        self.conv1 = _normed_conv(norm_groups, channels, channels)
        self.conv2 = _normed_conv(norm_groups, channels, channels)

    def forward(self, inputs: Tensor) -> Tensor:
        return F.relu(inputs + self.conv2(F.relu(self.conv1(inputs))))


def _conv3x3(fan_in: int, fan_out: int, std: float) -> nn.Conv2d:
    conv = nn.Conv2d(fan_in, fan_out, 3, padding=1, bias=False)
    nn.init.normal_(conv.weight, std=std)
    return conv


def _std(fan_out: int) -> float:
    """He's standard deviation by the outgoing connections of a 3x3 convolution."""
    return math.sqrt(2 / (9 * fan_out))
