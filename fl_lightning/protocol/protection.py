"""The protection of a client's samples in its uploads."""

from collections.abc import Callable
from dataclasses import dataclass

from fl_lightning.functional.aggregation import State
from fl_lightning.protocol.client import GradientEstimator, mean_gradient
from fl_lightning.protocol.upload import Upload


@dataclass(frozen=True)
class Protection:
    """A defence's part at the clients; by default there is none.

    Args:
        estimate: the way a gradient is computed from a batch's samples.
        one_by_one: the end of a sentence that explains why ``estimate`` works only for one client at a time, uncompiled; None:
            it works for many at once.
        poisson_batches: whether every sample is in a batch by an independent draw.
        bound: bounds a client's upload, from the upload and the received weights; None: it is sent unchanged.
    """

    estimate: GradientEstimator = mean_gradient
    one_by_one: str | None = None
    poisson_batches: bool = False
    bound: Callable[[Upload, State], Upload] | None = None
