"""The classes that an option takes by name."""

import inspect
from types import ModuleType

import torch
from lightning.pytorch import Callback
from torch import nn

from fl_lightning import callbacks, continual, losses, methods, models, optimizers, privacy
from fl_lightning.data import partitions
from fl_lightning.module import FederatedModule

# Key -> base class of its values, and the packages that offer them.
_OFFERED: dict[str, tuple[type, tuple[ModuleType, ...]]] = {
    "model": (FederatedModule, (methods, continual)),
    "model.net": (nn.Module, (models,)),
    "model.loss": (losses.Loss, (losses,)),
    "model.optimizer": (torch.optim.Optimizer, (torch.optim,)),
    "model.server_optimizer": (torch.optim.Optimizer, (torch.optim, optimizers)),
    "model.privacy": (privacy.Privacy, (privacy,)),
    "data.partition": (partitions.Partition, (partitions,)),
    "data.tasks": (continual.Tasks, (continual,)),
    "trainer.callbacks+": (Callback, (callbacks,)),
}
CLASS_KEYS = tuple(_OFFERED)


def known_classes(key: str) -> dict[str, type]:
    """Name -> class of what an option of ``CLASS_KEYS`` takes by short name; empty for every other option."""
    if key not in _OFFERED:
        return {}
    base, packages = _OFFERED[key]
    offered = {name: getattr(package, name) for package in packages for name in package.__all__}
    fitting = {name: kind for name, kind in offered.items() if inspect.isclass(kind) and issubclass(kind, base)}
    return {name: kind for name, kind in fitting.items() if kind is not base and not inspect.isabstract(kind)} or fitting
