"""What of a client's samples shows in what it sends."""

from collections.abc import Callable
from dataclasses import dataclass

from fl_lightning.functional.aggregation import State
from fl_lightning.protocol.client import GradientEstimator, mean_gradient
from fl_lightning.protocol.upload import Upload


@dataclass(frozen=True)
class Protection:
    """A defence's part at the clients; by default there is none.

    Args:
        estimate: how a gradient is made of a batch's samples.
        one_by_one: why ``estimate`` works for one client at a time, and not where it is compiled, in words that end a sentence;
            None: it works for many at once.
        poisson_batches: whether every sample is in a batch by an independent draw.
        bound: bounds what a client sends, from the upload and what the client received; None: it is sent as it is.
    """

    estimate: GradientEstimator = mean_gradient
    one_by_one: str | None = None
    poisson_batches: bool = False
    bound: Callable[[Upload, State], Upload] | None = None
