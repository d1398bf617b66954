"""When a client's learning rate falls, and when its task is over."""

from typing import NamedTuple

import torch
from torch import Tensor


class Clock(NamedTuple):
    """How far a client is in its task."""

    factor: float = 1.0  # on the learning rate
    best: float = float("inf")  # lowest validation loss so far
    waiting: int = 0  # rounds since then

    def tick(self, loss: float, patience: int, divisor: float) -> "Clock":
        """After a round with this validation loss: ``patience`` rounds without a new best divide the rate by ``divisor``."""
        if loss < self.best:
            return Clock(self.factor, loss, 0)
        if self.waiting + 1 < patience:
            return Clock(self.factor, self.best, self.waiting + 1)
        return Clock(self.factor / divisor, self.best, 0)

    def to_tensor(self, device: torch.device) -> Tensor:
        """(3,) float64, for a client's state."""
        return torch.tensor(self, dtype=torch.float64, device=device)

    @classmethod
    def from_tensor(cls, values: Tensor) -> "Clock":
        """What :meth:`to_tensor` made."""
        factor, best, waiting = values.tolist()
        return cls(factor, best, int(waiting))
