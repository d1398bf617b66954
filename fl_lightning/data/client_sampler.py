"""Who takes part in which round: a function of the seed and the round alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fl_lightning.random_streams import numpy_stream


class ClientSampler(Protocol):
    """Draws cohorts."""

    def cohort(self, round: int) -> list[int]:
        """The clients of a round (counted from 1), ascending."""
        ...


@dataclass(frozen=True)
class UniformSampler:
    """``size`` of N clients without replacement."""

    num_clients: int
    size: int
    seed: int

    def cohort(self, round: int) -> list[int]:
        """Takes time in proportion to the cohort, not to the population."""
        return _draw(self.num_clients, self.size, numpy_stream(self.seed, round, -1, "cohort"))


@dataclass(frozen=True)
class PoissonSampler:
    """Each of N clients by a coin of its own, ``expected_size`` of them on average, as accounting by client wants it."""

    num_clients: int
    expected_size: int
    seed: int

    def cohort(self, round: int) -> list[int]:
        """Possibly nobody."""
        rng = numpy_stream(self.seed, round, -1, "cohort")
        # So many coins come up, and any that many are as likely.
        return _draw(self.num_clients, rng.binomial(self.num_clients, self.expected_size / self.num_clients), rng)


@dataclass(frozen=True)
class FixedSampler:
    """The cohorts of round 1, 2, ... as they are given."""

    cohorts: Sequence[Sequence[int]]

    def cohort(self, round: int) -> list[int]:
        """As given.

        Raises:
            ValueError: if the round has none.
        """
        if not 1 <= round <= len(self.cohorts):
            raise ValueError(
                f"data.cohorts names {len(self.cohorts)} rounds, round {round} is asked for: lower trainer.max_steps"
            )
        return sorted(self.cohorts[round - 1])


def _draw(num_clients: int, size: int, rng: np.random.Generator) -> list[int]:
    return sorted(rng.choice(num_clients, size, replace=False).tolist())
