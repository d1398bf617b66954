"""DenseNet-121 with group normalisation, as FedReg trains it on CT images and on Landmarks.

Huang, Liu, van der Maaten, Weinberger, "Densely Connected Convolutional Networks", CVPR 2017, from torchvision; in Xu, Hong,
Huang, Jiang, "Acceleration of Federated Learning with Alleviated Forgetting in Local Training", ICLR 2022, with GroupNorm.
FedReg's code leaves out the final average pooling, the paper does not: it is kept here.
"""

from collections.abc import Sequence

import torchvision
from torch import nn

from fl_lightning.models.network import Network, image_shape


class DenseNet121(Network):
    """torchvision's DenseNet-121 with GroupNorm (4 groups) in place of every BatchNorm, no pre-training.

    conv 7x7 stride 2, norm, ReLU, max pool 3 stride 2; dense blocks of 6, 12, 24 and 16 layers, growth 32, with halving
    transitions between them; norm, ReLU, average pool; linear to classes. Kaiming initial weights. 6,955,906 parameters for 3
    channels and 2 classes.

    Args:
        input_shape: (channels, height, width), height and width at least 29.
        num_classes: at least 1.

    Raises:
        ValueError: if the input is not an image or too small.
    """

    def __init__(self, input_shape: Sequence[int], num_classes: int) -> None:
        super().__init__()
        cure = "use CNN2 or add fl_lightning.data.Resize to data.augment"
        channels, _, _ = image_shape("DenseNet121", input_shape, 29, cure=cure)
        net = torchvision.models.densenet121(num_classes=num_classes)
        if channels != 3:
            net.features.conv0 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
            nn.init.kaiming_normal_(net.features.conv0.weight)
        for name, norm in list(net.features.named_modules()):
            if isinstance(norm, nn.BatchNorm2d):
                net.features.set_submodule(name, nn.GroupNorm(4, norm.num_features))
        self.features = nn.Sequential(net.features, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = net.classifier
