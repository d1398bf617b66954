"""The ten-layer CNN of FedReg for CT images, the net of its gradient inversion attacks.

Xu, Hong, Huang, Jiang, "Acceleration of Federated Learning with Alleviated Forgetting in Local Training", ICLR 2022, appendix:
nine convolutions and one linear layer. The paper gives no more details; widths, norms and pooling are those of its code.
"""

from collections.abc import Sequence

from torch import nn

from fl_lightning.models.network import Network, image_shape


class CNN10(Network):
    """Nine 3x3 convolutions with one pooling, no hidden layer.

    conv 3x3 pad 1 to w, 2w, 2w, 4w, 4w and 4w, the sixth with a norm; max pool 3; conv 3x3 pad 1 to 4w, 4w and 4w, the second
    with a norm; linear to classes. ReLU after each convolution or its norm, GroupNorm with one group, w is ``width``.
    15,676,418 parameters for 3x128x128 and 2 classes.

    Args:
        input_shape: (channels, height, width), height and width at least 3.
        num_classes: at least 1.
        width: channels after the first convolution, w above.

    Raises:
        ValueError: if the input is not an image or too small.
    """

    def __init__(self, input_shape: Sequence[int], num_classes: int, width: int = 128) -> None:
        super().__init__()
        channels, rows, columns = image_shape("CNN10", input_shape, 3, cure="use MLP")
        self.features = nn.Sequential(
            *_conv(channels, width),
            *_conv(width, 2 * width),
            *_conv(2 * width, 2 * width),
            *_conv(2 * width, 4 * width),
            *_conv(4 * width, 4 * width),
            *_conv(4 * width, 4 * width, norm=True),
            nn.MaxPool2d(3),
            *_conv(4 * width, 4 * width),
            *_conv(4 * width, 4 * width, norm=True),
            *_conv(4 * width, 4 * width),
            nn.Flatten(),
        )
        self.classifier = nn.Linear(4 * width * (rows // 3) * (columns // 3), num_classes)


def _conv(fan_in: int, fan_out: int, norm: bool = False) -> list[nn.Module]:
    norms = [nn.GroupNorm(1, fan_out)] if norm else []
    return [nn.Conv2d(fan_in, fan_out, 3, padding=1), *norms, nn.ReLU()]
