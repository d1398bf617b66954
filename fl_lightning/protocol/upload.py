"""What clients send, what the server gets of it, and what it does with that."""

from collections.abc import Collection
from typing import NamedTuple, Protocol

from torch import Tensor

from fl_lightning.functional.aggregation import State


class Weighted(NamedTuple):
    """Named tensors and their weight in the mean over clients."""

    tensors: State
    weight: float
    derived: bool = False  # what the server can tell from the rest: it does not count as sent


class Gathered(NamedTuple):
    """Named tensors of a client that the server gets as they are, not summed with those of other clients."""

    tensors: State
    derived = False


Upload = dict[str, Weighted | Gathered]  # what a client sends: "weights", "buffers", and whatever a method adds, by name


class Update(NamedTuple):
    """What the server does with a round's mean."""

    pseudo_gradient: State  # by parameter name: global weights less the mean of the clients' weights
    buffers: State  # the mean of the clients' buffers, float64


class Reduction(Protocol):
    """What the server gets of a round's uploads; one with a value that is not finite is left out throughout."""

    @property
    def names(self) -> Collection[str]:
        """Under which something was sent to be summed."""
        ...

    def mean(self, name: str) -> State:
        """Weighted mean over clients of the tensors sent under a name, in float64."""
        ...

    def total_weight(self, name: str) -> Tensor:
        """Sum of the weights counted under a name, a float64 scalar."""
        ...

    def gathered(self, name: str) -> dict[int, State]:
        """By client, the tensors that those who sent any under a name sent."""
        ...
