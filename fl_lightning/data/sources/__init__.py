"""Where samples come from. A source is one small class: ``load(root)`` gives a :class:`Dataset`."""

from fl_lightning.data.sources.arrays import Arrays, Npz
from fl_lightning.data.sources.by_name import open_source, source_names
from fl_lightning.data.sources.digits import Digits
from fl_lightning.data.sources.hugging_face import HuggingFace
from fl_lightning.data.sources.image_folder import ImageFolder
from fl_lightning.data.sources.joined import Joined
from fl_lightning.data.sources.leaf import Leaf
from fl_lightning.data.sources.source import Source
from fl_lightning.data.sources.superclasses import Superclasses
from fl_lightning.data.sources.torchvision_dataset import TorchvisionDataset

__all__ = [
    "Arrays",
    "Digits",
    "HuggingFace",
    "ImageFolder",
    "Joined",
    "Leaf",
    "Npz",
    "Source",
    "Superclasses",
    "TorchvisionDataset",
    "open_source",
    "source_names",
]
