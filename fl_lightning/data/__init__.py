"""Sources, partitions, shards and the data module that serves clients their batches."""

from fl_lightning.data.augment import (
    Augmentation,
    CenterCrop,
    Cutout,
    Grayscale,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToRGB,
)
from fl_lightning.data.availability import Availability, DayAndNight, SometimesThere, Trace
from fl_lightning.data.client_sampler import ClientSampler, Poisson, Uniform
from fl_lightning.data.datamodule import FederatedDataModule
from fl_lightning.data.in_memory import from_arrays, from_dataset
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
from fl_lightning.data.samples import Dataset, Samples
from fl_lightning.data.sources.arrays import Arrays, Npz
from fl_lightning.data.sources.characters import Characters
from fl_lightning.data.sources.digits import Digits
from fl_lightning.data.sources.hugging_face import HuggingFace
from fl_lightning.data.sources.image_folder import ImageFolder
from fl_lightning.data.sources.joined import Joined
from fl_lightning.data.sources.leaf import Leaf
from fl_lightning.data.sources.some_classes import SomeClasses
from fl_lightning.data.sources.source import Source
from fl_lightning.data.sources.superclasses import Superclasses
from fl_lightning.data.sources.torchvision_dataset import TorchvisionDataset
from fl_lightning.protocol import Batch, PlannedStep
from fl_lightning.protocol.devices import Devices

__all__ = [
    "IID",
    "Arrays",
    "Augmentation",
    "Availability",
    "Batch",
    "CenterCrop",
    "Characters",
    "Classes",
    "ClientSampler",
    "Cutout",
    "Dataset",
    "DayAndNight",
    "Devices",
    "Digits",
    "Dirichlet",
    "DirichletByClass",
    "EvaluationInputs",
    "FederatedDataModule",
    "Fixed",
    "Grayscale",
    "HuggingFace",
    "ImageFolder",
    "Joined",
    "Leaf",
    "Natural",
    "Npz",
    "Pad",
    "Partition",
    "PlannedStep",
    "Poisson",
    "PowerLaw",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resize",
    "Samples",
    "Shards",
    "SomeClasses",
    "SometimesThere",
    "Source",
    "Superclasses",
    "ToRGB",
    "TorchvisionDataset",
    "Trace",
    "Uniform",
    "from_arrays",
    "from_dataset",
]
