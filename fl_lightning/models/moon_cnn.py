"""The CNN of MOON for CIFAR-10: a small LeNet with a projection head.

Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021: two 5x5 convolutions and two hidden layers of 120 and 84 as
base encoder, a projection head of two layers with output 256, the output layer. The ReLU between the head's layers, of 84 and
256, is the authors' code's; nothing follows the second.
"""

from collections.abc import Sequence

from torch import nn

from fl_lightning.models.network import Network, image_shape


class MoonCNN(Network):
    """Two 5x5 convolutions without padding, two hidden layers, a projection head; MOON contrasts the head's output.

    conv 5x5 to 6, ReLU, max pool 2; conv 5x5 to 16, ReLU, max pool 2; linear to 120, ReLU; linear to 84, ReLU; linear to 84,
    ReLU; linear to 256; linear to classes. 92,626 parameters for 3x32x32 and 10 classes.

    Args:
        input_shape: (channels, height, width), height and width at least 16.
        num_classes: at least 1.

    Raises:
        ValueError: if the input is not an image or too small.
    """

    def __init__(self, input_shape: Sequence[int], num_classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape("MoonCNN", input_shape, 16, cure="use CNN2 or MLP")
        pooled = [((size - 4) // 2 - 4) // 2 for size in (height, width)]
        # ReLU after the pooling gives the same bits, from a quarter of the entries.
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(6, 16, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * pooled[0] * pooled[1], 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, 84),
            nn.ReLU(),
            nn.Linear(84, 256),
        )
        self.classifier = nn.Linear(256, num_classes)
