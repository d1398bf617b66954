"""Sources, partitions, shards and the data module that serves clients their batches."""

from fl_lightning.data.augment import (
    Augmentation,
    CenterCrop,
    Grayscale,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToRGB,
)
from fl_lightning.data.datamodule import FederatedDataModule, from_arrays
from fl_lightning.data.loaders import EvaluationInputs
from fl_lightning.data.partitions import (
    IID,
    Classes,
    Dirichlet,
    DirichletByClass,
    Fixed,
    Natural,
    Partition,
    PowerLaw,
    Shards,
)
from fl_lightning.data.samples import Batch, Dataset, Samples
from fl_lightning.data.sources import (
    Arrays,
    Digits,
    HuggingFace,
    ImageFolder,
    Leaf,
    Npz,
    Source,
    Superclasses,
    TorchvisionDataset,
)

__all__ = [
    "IID",
    "Arrays",
    "Augmentation",
    "Batch",
    "CenterCrop",
    "Classes",
    "Dataset",
    "Digits",
    "Dirichlet",
    "DirichletByClass",
    "EvaluationInputs",
    "FederatedDataModule",
    "Fixed",
    "Grayscale",
    "HuggingFace",
    "ImageFolder",
    "Leaf",
    "Natural",
    "Npz",
    "Pad",
    "Partition",
    "PowerLaw",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resize",
    "Samples",
    "Shards",
    "Source",
    "Superclasses",
    "ToRGB",
    "TorchvisionDataset",
    "from_arrays",
]
