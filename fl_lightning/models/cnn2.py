"""The two-layer CNN of FedAvg (McMahan et al. 2017), FedNTD and Flashback."""

from collections.abc import Sequence

from torch import nn

from fl_lightning.models.network import Network, image_shape


def _norms(groups: int | None, channels: int) -> list[nn.Module]:
    return [] if groups is None else [nn.GroupNorm(groups, channels)]


class CNN2(Network):
    """Two 5x5 convolutions with max pooling, one hidden layer.

    conv 5x5 pad 2 to 32, ReLU, max pool 2; conv 5x5 pad 2 to 64, ReLU, max pool 2; linear to ``hidden``, ReLU; linear to
    classes. 2,156,490 parameters for 3x32x32 and 10 classes, 1,663,370 for 1x28x28 and 10.

    Args:
        input_shape: (channels, height, width), height and width at least 4.
        num_classes: at least 1.
        hidden: width of the hidden layer.
        norm_groups: number of groups, a divisor of 32, of a GroupNorm after each convolution; by default no norm.

    Raises:
        ValueError: if the input is not an image or too small, or ``norm_groups`` is not a divisor of 32.
    """

    def __init__(self, input_shape: Sequence[int], num_classes: int, hidden: int = 512, norm_groups: int | None = None) -> None:
        super().__init__()
        if norm_groups is not None and (norm_groups < 1 or 32 % norm_groups):
            raise ValueError(f"model.net.norm_groups is {norm_groups}, must be a divisor of 32: ResNet18 has 2")
        channels, height, width = image_shape("CNN2", input_shape, 4, cure="use MLP")
        # ReLU after the pooling gives the same bits, from a quarter of the entries.
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2),
            *_norms(norm_groups, 32),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(32, 64, 5, padding=2),
            *_norms(norm_groups, 64),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * (height // 4) * (width // 4), hidden),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(hidden, num_classes)
