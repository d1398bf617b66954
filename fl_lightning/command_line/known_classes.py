"""The classes that options accept by name."""

import inspect
from types import ModuleType

import torch
from lightning.pytorch import Callback
from torch import nn

from fl_lightning import callbacks, losses, methods, models, objectives, optimizers, privacy, robustness, tasks
from fl_lightning.data import availability, client_sampler, partitions
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import Learner, devices

# Key -> base class of its values, and the packages with such classes.
_OFFERED: dict[str, tuple[type, tuple[ModuleType, ...]]] = {
    "model": (FederatedModule, (methods, tasks)),
    "model.tasks": (Learner, (tasks,)),
    "model.net": (nn.Module, (models,)),
    "model.adapter": (models.Adapter, (models,)),
    "model.loss": (losses.Loss, (losses,)),
    "model.optimizer": (torch.optim.Optimizer, (torch.optim,)),
    "model.server_optimizer": (torch.optim.Optimizer, (torch.optim, optimizers)),
    "model.aggregation": (robustness.Aggregation, (robustness,)),
    "model.hostile": (robustness.Hostile, (robustness,)),
    "model.privacy": (privacy.Privacy, (privacy,)),
    "data.partition": (partitions.Partition, (partitions,)),
    "data.client_sampler": (client_sampler.ClientSampler, (client_sampler, availability)),
    "data.devices": (devices.Devices, (devices,)),
    "data.source.objective": (objectives.Objective, (objectives,)),
    "data.tasks": (tasks.Tasks, (tasks,)),
    "trainer.callbacks": (Callback, (callbacks,)),
}
CLASS_KEYS = tuple(_OFFERED)


def known_classes(key: str) -> dict[str, type]:
    """The classes that an option accepts by short name; empty for an option without classes of this package."""
    if key not in _OFFERED:
        return {}
    base, packages = _OFFERED[key]
    offered = {name: getattr(package, name) for package in packages for name in package.__all__}
    fitting = {name: kind for name, kind in offered.items() if inspect.isclass(kind) and issubclass(kind, base)}
    return {name: kind for name, kind in fitting.items() if kind is not base and not inspect.isabstract(kind)} or fitting
