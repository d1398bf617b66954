"""What tests ask again and again is answered once in a process: parsers, callbacks of packages, whether there is a driver."""

import functools
import sys
from collections.abc import Callable

import torch
from lightning.pytorch.trainer.connectors import callback_connector

from fl_lightning.command_line.cli import FederatedCLI


def answers() -> list[tuple[object, str, Callable]]:
    """Owner, name and replacement of each function, whose answer is kept.

    Reading the entry points of all packages takes longer than many a toy round, building a parser longer than most command
    lines, and looking for a driver that is not there, for every tensor of a graph that is traced, adds up.
    """
    asked = [(callback_connector, "_load_external_callbacks"), (torch.cuda, "_raw_device_count_nvml")]
    kept = [(module, name, functools.cache(getattr(module, name))) for module, name in asked]
    return [*kept, (FederatedCLI, "setup_parser", _built_once(FederatedCLI.setup_parser))]


def _built_once(build: Callable) -> Callable:
    """The parser of a subcommand serves all its command lines."""
    built = {}

    def build_once(self: FederatedCLI, *arguments: object) -> None:
        key = type(self), sys.argv[1]
        if key not in built:
            before = set(vars(self))
            build(self, *arguments)
            built[key] = {name: value for name, value in vars(self).items() if name not in before}
        vars(self).update(built[key])

    return build_once
