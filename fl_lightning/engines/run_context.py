"""RunContext: what an engine knows of the run around it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from fl_lightning.engines.ranks import OneProcess, Ranks
from fl_lightning.protocol.protection import Protection
from fl_lightning.state.client_states import ClientStates, MemoryStates


@dataclass(frozen=True)
class RunContext:
    """A run, without the trainer that it may have.

    Args:
        device: where clients are trained.
        states: where what they keep lies.
        ranks: the processes that share cohorts, and what moves between them.
        protection: of the clients' samples.
        precision: in which hooks run, such as autocast.
        batch_size: samples of a local step; None: as many as the federation has it.
        seed: of what layers and hooks draw in a round; None: the method's.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    states: ClientStates = field(default_factory=MemoryStates)
    ranks: Ranks = field(default_factory=OneProcess)
    protection: Protection = field(default_factory=Protection)
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext
    batch_size: int | None = None
    seed: int | None = None
