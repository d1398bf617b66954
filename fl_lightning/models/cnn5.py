"""The five-layer CNN of FedReg for MNIST and EMNIST.

Xu, Hong, Huang, Jiang, "Acceleration of Federated Learning with Alleviated Forgetting in Local Training", ICLR 2022.
"""

from collections.abc import Sequence

from torch import nn

from fl_lightning.models.network import Network, image_shape


class CNN5(Network):
    """Three 5x5 convolutions without padding, one hidden layer.

    conv 5x5 to 32, ReLU; conv 5x5 to 32, max pool 2, ReLU; conv 5x5 to 64, max pool 2, ReLU; linear to 256, ReLU; linear to
    classes. 228,010 parameters for 1x28x28 and 10 classes.

    Args:
        input_shape: (channels, height, width), height and width at least 20.
        num_classes: at least 1.

    Raises:
        ValueError: if the input is not an image or too small.
    """

    def __init__(self, input_shape: Sequence[int], num_classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape("CNN5", input_shape, 20, cure="use CNN2 or MLP")
        pooled = [((size - 8) // 2 - 4) // 2 for size in (height, width)]
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 5),
            nn.ReLU(),
            nn.Conv2d(32, 32, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(32, 64, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * pooled[0] * pooled[1], 256),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(256, num_classes)
