"""The classes that an option takes by name."""

import inspect
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import torch
from lightning.pytorch import Callback
from torch import nn

from fl_lightning import callbacks, continual, losses, methods, models, optimizers, privacy
from fl_lightning.continual.federated import combined, combined_names
from fl_lightning.data import client_sampler, partitions
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
    "data.client_sampler": (client_sampler.ClientSampler, (client_sampler,)),
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


def known_names(key: str) -> list[str]:
    """Short names that an option of ``CLASS_KEYS`` takes, also of classes that are made when they are asked for."""
    return [*known_classes(key), *(combined_names() if key == "model" else ())]


def make_named(arguments: Sequence[str]) -> None:
    """Make the classes that a command line or a config in it names, so that the parser finds them by their short names."""
    configs = [Path(value) for option, value in pairwise(arguments) if option == "--config"]
    texts = [*arguments, *(config.read_text(encoding="utf-8") for config in configs if config.is_file())]
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    for name in words:
        if why_not("model", name) is None:
            combined(name)


def why_not(key: str, name: str) -> str | None:
    """What keeps the two classes that a name joins from being one; None: nothing, or the name joins none."""
    if key == "model":
        try:
            combined(name)
        except TypeError as error:
            return str(error)
    return None
