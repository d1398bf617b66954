"""A plain multi-layer perceptron, for vectors and small images."""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fl_lightning.models.network import Network


class MLP(Network):
    """Flatten, then linear layers with ReLU between them.

    Args:
        input_shape: any shape; flattened.
        num_classes: at least 1.
        hidden: widths of the hidden layers; empty gives a linear model.
    """

    def __init__(self, input_shape: Sequence[int], num_classes: int, hidden: Sequence[int] = (64,)) -> None:
        super().__init__()
        widths = [math.prod(input_shape), *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(widths[-1], num_classes)
