"""Who takes part in which round: a function of the seed and the round alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fl_lightning.checks import check_range
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
    """Each of N clients by an independent draw, ``expected_size`` of them on average, as accounting by client wants it."""

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
    """The cohorts of round 1, 2, ... as they are given.

    Raises:
        ValueError: if one names nobody, a client twice or none of the N.
    """

    num_clients: int
    cohorts: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        for cohort in self.cohorts:
            if not cohort or len(set(cohort)) != len(cohort) or not all(0 <= client < self.num_clients for client in cohort):
                raise ValueError(
                    f"data.cohorts has the cohort {list(cohort)}, must name clients between 0 and {self.num_clients - 1}, "
                    "each once and at least one"
                )

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


def cohort_size(clients_per_round: int | float, num_clients: int) -> int:
    """Clients of a cohort: a whole number is a count, a number with a point a fraction of N, of which at least one takes part.

    Raises:
        ValueError: if it is out of range.
    """
    if isinstance(clients_per_round, float):
        hint = "it is a fraction, write a whole number for a count"
        check_range("data.clients_per_round", clients_per_round, above=0, at_most=1, hint=hint)
        return max(int(clients_per_round * num_clients + 1e-9), 1)
    hint = f"data.num_clients is {num_clients}"
    check_range("data.clients_per_round", clients_per_round, at_least=1, at_most=num_clients, hint=hint)
    return clients_per_round


def _draw(num_clients: int, size: int, rng: np.random.Generator) -> list[int]:
    return sorted(rng.choice(num_clients, size, replace=False).tolist())
