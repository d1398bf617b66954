"""The generators of MFCL and TARGET: images from noise; and of LANDER: from the embeddings of class names."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_WIDTH = 128  # channels
_SHARE = 10  # samples of a batch with the same linear layer, in LANDER's


class Generator(nn.Module):
    """From noise (B, noise) to roughly normalised images (B, channels, height, width); 8,423,939 parameters for CIFAR.

    Linear to 128 maps of a quarter of the height and width; BatchNorm; twice: doubled, convolution, BatchNorm, LeakyReLU .2;
    convolution, tanh, BatchNorm without weights. Sides that are not multiples of 4 are cropped.

    Args:
        input_shape: (channels, height, width).
        noise: dimensions of the noise.
    """

    eps = 0.8  # of the blocks' BatchNorm: MFCL's code gives .8 as its third argument, which is eps
    has_bias = True  # of the blocks' convolutions

    def __init__(self, input_shape: Sequence[int], noise: int = 1000) -> None:
        super().__init__()
        channels, *self.size = input_shape
        self.start = [-(-side // 4) for side in self.size]
        self.linear = nn.Linear(noise, _WIDTH * self.start[0] * self.start[1])
        self.normalise = nn.BatchNorm2d(_WIDTH)
        self.first, self.second = self._block(_WIDTH), self._block(_WIDTH // 2)
        self.last = nn.Sequential(nn.Conv2d(_WIDTH // 2, channels, 3, padding=1), *self._ending(channels))

    def forward(self, noise: Tensor) -> Tensor:
        maps = self.normalise(self.linear(noise).view(-1, _WIDTH, *self.start))
        for block in (self.first, self.second):
            maps = block(F.interpolate(maps, scale_factor=2))
        height, width = self.size
        return self.last(maps)[..., :height, :width]

    def _block(self, outputs: int) -> nn.Sequential:
        convolution = nn.Conv2d(_WIDTH, outputs, 3, padding=1, bias=self.has_bias)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs, self.eps), nn.LeakyReLU(0.2, inplace=True))

    def _ending(self, channels: int) -> tuple[nn.Module, ...]:
        return nn.Tanh(), nn.BatchNorm2d(channels, affine=False)


class UnitGenerator(Generator):
    """TARGET's: images in [0, 1] by a sigmoid, blocks without biases; 2,328,899 parameters for CIFAR."""

    eps = 1e-5
    has_bias = False

    def __init__(self, input_shape: Sequence[int], noise: int = 256) -> None:
        super().__init__(input_shape, noise)

    def _ending(self, channels: int) -> tuple[nn.Module, ...]:
        return (nn.Sigmoid(),)


class AnchoredGenerator(UnitGenerator):
    """LANDER's: embeddings (B, width) go through BatchNorm and a linear layer to TARGET's 256 inputs.

    Ten samples of a batch share a linear layer, the next ten another. There is no noise: :meth:`redraw` draws the layers anew.

    Args:
        width: of an embedding.
        batch: B, samples of a batch.
    """

    def __init__(self, input_shape: Sequence[int], width: int, batch: int) -> None:
        super().__init__(input_shape)
        self.scale = nn.BatchNorm1d(width)
        self.layers = nn.ModuleList(nn.Linear(width, self.linear.in_features) for _ in range(-(-batch // _SHARE)))

    def redraw(self, stream: torch.Generator) -> None:
        """Draw the linear layers anew: weights N(0, 1), biases 0, the same on every device."""
        for layer in self.layers:
            weight, bias = layer.get_parameter("weight"), layer.get_parameter("bias")
            weight.data.copy_(torch.randn(weight.shape, generator=stream, dtype=torch.float64))
            bias.data.zero_()

    def forward(self, embeddings: Tensor) -> Tensor:
        parts = self.scale(embeddings).split(_SHARE)
        return super().forward(torch.cat([layer(part) for layer, part in zip(self.layers, parts, strict=True)]))


def draw_noise(count: int, generator: Generator, stream: torch.Generator) -> Tensor:
    """(count, noise) normal values for a generator, the same on every device."""
    weight = generator.linear.weight
    return torch.randn(count, weight.shape[1], generator=stream, dtype=torch.float64).to(weight)
