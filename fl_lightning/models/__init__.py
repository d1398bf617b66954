"""The papers' networks. Each takes ``(input_shape, num_classes, ...)``; both come from the data when a config names a net."""

from fl_lightning.models.adapters import Adapter, LoRA
from fl_lightning.models.character_transformer import CharacterTransformer
from fl_lightning.models.cnn2 import CNN2
from fl_lightning.models.cnn5 import CNN5
from fl_lightning.models.cnn10 import CNN10
from fl_lightning.models.densenet121 import DenseNet121
from fl_lightning.models.lenet import LeNet
from fl_lightning.models.mlp import MLP
from fl_lightning.models.moon_cnn import MoonCNN
from fl_lightning.models.network import Network
from fl_lightning.models.resnet9 import ResNet9
from fl_lightning.models.resnet18 import ResNet18
from fl_lightning.models.timm_model import TimmModel
from fl_lightning.models.torchvision_model import TorchvisionModel
from fl_lightning.models.transformers_model import TransformersModel

__all__ = [
    "CNN2",
    "CNN5",
    "CNN10",
    "MLP",
    "Adapter",
    "CharacterTransformer",
    "DenseNet121",
    "LeNet",
    "LoRA",
    "MoonCNN",
    "Network",
    "ResNet9",
    "ResNet18",
    "TimmModel",
    "TorchvisionModel",
    "TransformersModel",
]
