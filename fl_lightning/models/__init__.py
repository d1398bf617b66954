"""The papers' networks. Each takes ``(input_shape, num_classes, ...)``; both come from the data when a config names a net."""

from fl_lightning.models.cnn2 import CNN2
from fl_lightning.models.mlp import MLP
from fl_lightning.models.network import Network
from fl_lightning.models.resnet18 import ResNet18

__all__ = ["CNN2", "MLP", "Network", "ResNet18"]
