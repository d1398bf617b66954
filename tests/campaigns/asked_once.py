"""What tests ask again and again is answered once in a process: callbacks of packages, whether there is a driver."""

import functools
from collections.abc import Callable

import torch
from lightning.pytorch.trainer.connectors import callback_connector


def answers() -> list[tuple[object, str, Callable]]:
    """Owner, name and replacement of each function, whose answer is kept.

    Reading the entry points of all packages takes longer than many a toy round, and looking for a driver that is not there, for
    every tensor of a graph that is traced, adds up.
    """
    asked = [(callback_connector, "_load_external_callbacks"), (torch.cuda, "_raw_device_count_nvml")]
    return [(module, name, functools.cache(getattr(module, name))) for module, name in asked]
