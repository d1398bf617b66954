"""A net with BatchNorm that is as small as can be."""

import math
from collections.abc import Sequence

from torch import nn


class BatchNormNet(nn.Sequential):
    """A hidden layer of 8 units, normalised over the batch."""

    def __init__(self, input_shape: Sequence[int], num_classes: int) -> None:
        hidden = nn.Linear(math.prod(input_shape), 8)
        super().__init__(nn.Flatten(), hidden, nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, num_classes))
