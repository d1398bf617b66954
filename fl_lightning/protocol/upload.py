"""Clients' uploads, their reduction for the server, and the server's update."""

from collections.abc import Collection
from typing import NamedTuple, Protocol

from torch import Tensor

from fl_lightning.functional.aggregation import State


class Weighted(NamedTuple):
    """Named tensors and their weight in the mean over clients."""

    tensors: State
    weight: float
    derived: bool = False  # the server can compute it from the rest: it does not count as sent


class Gathered(NamedTuple):
    """Named tensors of a client that the server gets unchanged, not summed with those of other clients."""

    tensors: State
    derived = False


Upload = dict[str, Weighted | Gathered]  # a client's upload: "weights", "buffers", and further tensors of a method, by name


class Update(NamedTuple):
    """The server's update from a round's mean."""

    pseudo_gradient: State  # by parameter name: global weights less the mean of the clients' weights
    buffers: State  # the mean of the clients' buffers, float64


class Reduction(Protocol):
    """The reduction of a round's uploads for the server; a non-finite upload is left out throughout."""

    @property
    def names(self) -> Collection[str]:
        """Names under which clients sent tensors to sum."""
        ...

    def mean(self, name: str) -> State:
        """Weighted mean over clients of the tensors sent under a name, in float64."""
        ...

    def total_weight(self, name: str) -> Tensor:
        """Sum of the weights counted under a name, a float64 scalar."""
        ...

    def gathered(self, name: str) -> dict[int, State]:
        """Tensors sent under a name, by client, for the clients that sent any."""
        ...
