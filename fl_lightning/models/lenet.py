"""The LeNet of FedWeIT: local response normalisation, 3x3 pooling, two hidden layers.

Yoon, Jeong, Lee, Yang, Hwang, "Federated Continual Learning with Weighted Inter-client Transfer", ICML 2021. Where text, table
and code differ: pooling is 3x3 (table and code; the text has 2x2), and normalisation follows the convolutions only (code).
Biases start at zero, as the paper is silent about them.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.models.network import Network, image_shape

_BETA = 0.75


class LeNet(Network):
    """Two 5x5 convolutions with local response normalisation and overlapping pooling, two hidden layers.

    conv 5x5 'same' to 20, ReLU, LRN, max pool 3x3 stride 2 'same'; conv 5x5 'same' to 50, ReLU, LRN, max pool 3x3 stride 2
    'same'; linear to 800, ReLU; linear to 500, ReLU; linear to classes. 2,987,870 parameters before the class layer for
    3x32x32; with ten class layers of 5 outputs 3,012,920, as published.

    Args:
        input_shape: (channels, height, width).
        num_classes: at least 1.
        dropout: share of each hidden layer's outputs that a training step leaves out, in [0, 1); Stable-SGD's scripts use .5.

    Raises:
        ValueError: if the input is not an image or ``dropout`` out of range.
    """

    def __init__(self, input_shape: Sequence[int], num_classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        check_range("model.net.dropout", dropout, at_least=0, below=1, hint="0 leaves nothing out")
        channels, height, width = image_shape("LeNet", input_shape, cure="use MLP")
        half = (math.ceil(height / 2), math.ceil(width / 2))
        quarter = (math.ceil(height / 4), math.ceil(width / 4))
        # No layer at 0: it would still draw, which not all engines support.
        drop = [nn.Dropout(dropout)] if dropout > 0 else []
        self.features = nn.Sequential(
            nn.Conv2d(channels, 20, 5, padding=2),
            nn.ReLU(),
            _LocalResponseNorm(),
            _same_pool(height, width),
            nn.Conv2d(20, 50, 5, padding=2),
            nn.ReLU(),
            _LocalResponseNorm(),
            _same_pool(*half),
            nn.Flatten(),
            nn.Linear(50 * quarter[0] * quarter[1], 800),
            nn.ReLU(),
            *drop,
            nn.Linear(800, 500),
            nn.ReLU(),
            *drop,
        )
        self.classifier = nn.Linear(500, num_classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                _scale_variance(layer)


class _LocalResponseNorm(nn.Module):
    """``x / (1 + .001 / 9 * s)^.75``, s the sum of squares over the channel, the four before and the four after it."""

    def forward(self, inputs: Tensor) -> Tensor:
        return _NormalizeResponses.apply(inputs.flatten(2)).unflatten(2, inputs.shape[2:])


class _NormalizeResponses(torch.autograd.Function):
    """Of (B, C, pixels). Instead of torch's, which is bound by memory."""

    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: Tensor) -> Tensor:
        return inputs * _response(inputs).pow(-_BETA)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (inputs,) = ctx.saved_tensors
        response = _response(inputs)
        direct = gradient * response.pow(-_BETA)
        through_others = _neighbours(inputs) @ (direct * inputs).div_(response)
        return torch.addcmul(direct, inputs, through_others, value=-2 * _BETA)


def _response(inputs: Tensor) -> Tensor:
    return _neighbours(inputs) @ inputs.square() + 1


def _neighbours(inputs: Tensor) -> Tensor:
    """(C, C): .001 / 9 between channels that are at most four apart, else 0."""
    num_channels = inputs.shape[-2]
    return inputs.new_full((num_channels, num_channels), 1e-3 / 9).triu(-4).tril(4)


def _same_pool(height: int, width: int) -> nn.MaxPool2d:
    """TensorFlow's 'same': an even side is padded at its end only, which ``ceil_mode`` does, an odd one at both ends."""
    return nn.MaxPool2d(3, stride=2, padding=(height % 2, width % 2), ceil_mode=True)


def _scale_variance(layer: nn.Conv2d | nn.Linear) -> None:
    """TensorFlow's VarianceScaling: variance 1 / fan_in, from a normal distribution cut off at two standard deviations."""
    std = 1 / math.sqrt(layer.weight[0].numel()) / 0.87962566103423978  # what the cut takes from the standard deviation
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
