"""Sources, partitions, shards and the data module that serves clients their batches."""

from fl_lightning.data.augment import Augmentation, RandomCrop, RandomHorizontalFlip
from fl_lightning.data.datamodule import FederatedDataModule, from_arrays
from fl_lightning.data.partitions import IID, Dirichlet, DirichletByClass, Fixed, Partition, Shards
from fl_lightning.data.samples import Batch, Dataset, Samples
from fl_lightning.data.sources import Arrays, Digits, ImageFolder, Source, TorchvisionDataset

__all__ = [
    "IID",
    "Arrays",
    "Augmentation",
    "Batch",
    "Dataset",
    "Digits",
    "Dirichlet",
    "DirichletByClass",
    "FederatedDataModule",
    "Fixed",
    "ImageFolder",
    "Partition",
    "RandomCrop",
    "RandomHorizontalFlip",
    "Samples",
    "Shards",
    "Source",
    "TorchvisionDataset",
    "from_arrays",
]
