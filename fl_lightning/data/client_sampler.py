"""The cohorts of rounds. A sampler is one small class: the round, N and a size in, a cohort out."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from fl_lightning.checks import class_and_settings
from fl_lightning.functional.random_streams import numpy_stream

__all__ = ["ClientSampler", "Poisson", "Uniform"]


class ClientSampler(ABC):
    """A rule that draws cohorts; the same arguments always give the same cohort.

    Attributes:
        num_rounds: number of rounds with cohorts, from 1 on; None: every round.
        may_be_empty: whether it can draw no client, which makes a round without an update.
    """

    num_rounds: int | None = None
    may_be_empty: bool = False

    @abstractmethod
    def cohort(self, round: int, num_clients: int, size: int, seed: int) -> Sequence[int]:
        """The clients of a round, in any order.

        Args:
            round: counted from 1.
            num_clients: N; clients are 0 to N - 1.
            size: clients per round from ``data.clients_per_round``, between 1 and N.
            seed: seed of the data module.
        """

    def check(self, num_clients: int) -> None:  # noqa: B027  # most samplers are for any number
        """Refuse settings that are not for N clients; later cohorts can be of the first of these, those that have joined."""

    def largest(self, num_clients: int, size: int) -> int:
        """Maximum number of clients in a cohort: N by default."""
        return num_clients

    def __repr__(self) -> str:
        return class_and_settings(self)


class Uniform(ClientSampler):
    """``clients_per_round`` of N clients without replacement (McMahan et al. 2017)."""

    def cohort(self, round: int, num_clients: int, size: int, seed: int) -> list[int]:
        """Takes time in proportion to the cohort, not to the population."""
        return _draw(num_clients, size, numpy_stream(seed, round, -1, "cohort"))

    def largest(self, num_clients: int, size: int) -> int:
        return size


class Poisson(ClientSampler):
    """Each of N clients by an independent draw with probability ``clients_per_round`` / N, as accounting by client requires."""

    may_be_empty = True

    def cohort(self, round: int, num_clients: int, size: int, seed: int) -> list[int]:
        rng = numpy_stream(seed, round, -1, "cohort")
        # The number of clients, and then any clients of this number with equal probability.
        return _draw(num_clients, rng.binomial(num_clients, size / num_clients), rng)


class FixedCohorts(ClientSampler):
    """The cohorts of rounds 1, 2, ... in ``data.cohorts``."""

    def __init__(self, cohorts: Sequence[Sequence[int]]) -> None:
        self.cohorts, self.num_rounds = cohorts, len(cohorts)

    def cohort(self, round: int, num_clients: int, size: int, seed: int) -> Sequence[int]:
        return self.cohorts[round - 1]

    def largest(self, num_clients: int, size: int) -> int:
        return max(map(len, self.cohorts))


def _draw(num_clients: int, size: int, rng: np.random.Generator) -> list[int]:
    return sorted(rng.choice(num_clients, size, replace=False).tolist())
