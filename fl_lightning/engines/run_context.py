"""RunContext: an engine's view of its run."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from fl_lightning.engines.ranks import OneProcess, Ranks
from fl_lightning.protocol import Protection
from fl_lightning.protocol.devices import Devices
from fl_lightning.state.client_states import ClientStates, MemoryStates


@dataclass(frozen=True)
class RunContext:
    """A run, independent of a trainer.

    Args:
        device: the device on which clients are trained.
        states: store of the clients' states.
        ranks: the processes that share cohorts, and the exchange between them.
        devices: speeds of the clients, and what they lose; None: all visits end.
        protection: protection of the clients' samples.
        precision: context in which hooks run, such as autocast.
        batch_size: samples of a local step; None: that of the federation.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    states: ClientStates = field(default_factory=MemoryStates)
    ranks: Ranks = field(default_factory=OneProcess)
    devices: Devices | None = None
    protection: Protection = field(default_factory=Protection)
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext
    batch_size: int | None = None
