"""The cohorts of a run: a sampler with its arguments."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from textwrap import shorten
from typing import Any

import numpy as np
import torch

from fl_lightning.checks import check_range, check_whole, counted, in_code_of
from fl_lightning.data.client_sampler import ClientSampler, FixedCohorts, Uniform
from fl_lightning.protocol.devices import Devices


@dataclass(frozen=True)
class Participation:
    """The cohorts of a run, a function of only the seed and the round.

    Raises:
        ValueError: if the sampler is not a :class:`ClientSampler`.
    """

    sampler: ClientSampler
    num_clients: int
    size: int  # clients of a cohort, on average or exactly, depending on the sampler
    seed: int

    def __post_init__(self) -> None:
        if not isinstance(self.sampler, ClientSampler):
            raise ValueError(f"data.client_sampler is {self.sampler!r}, must be a ClientSampler: such as Poisson()")

    def among(self, num_clients: int | None) -> "Participation":
        """The participation in a round when only the first so many clients have joined; None: all have."""
        if num_clients is None:
            return self
        return replace(self, num_clients=num_clients, size=min(self.size, num_clients))

    def cohort(self, round: int) -> list[int]:
        """The clients of a round (counted from 1), ascending; possibly none, if the sampler allows it.

        Raises:
            ValueError: if the sampler has no such round, or draws anything other than clients of the federation, each once.
        """
        if self.num_rounds is not None and not 1 <= round <= self.num_rounds:
            raise ValueError(
                f"{self.said_by} names {counted(self.num_rounds, 'round')}, but round {round} is needed: lower "
                "trainer.max_steps"
            )
        with in_code_of("data.client_sampler", self.sampler):
            drawn = self.sampler.cohort(round, self.num_clients, self.size, self.seed)
        try:
            cohort = sorted(map(_index, drawn))
        except TypeError as error:
            raise self._refusal(shorten(repr(drawn), 60), round) from error
        if not cohort and not self.sampler.may_be_empty:
            raise self._refusal("no client", round)
        if cohort and not 0 <= cohort[0] <= cohort[-1] < self.num_clients:
            raise self._refusal(f"client {cohort[0] if cohort[0] < 0 else cohort[-1]}", round)
        if len(set(cohort)) != len(cohort):
            twice = next(client for client, following in pairwise(cohort) if client == following)
            raise self._refusal(f"client {twice} twice", round)
        return cohort

    @property
    def num_rounds(self) -> int | None:
        """Number of rounds with cohorts; None: every round."""
        return self.sampler.num_rounds

    @property
    def expected(self) -> int:
        """Average number of clients in a cohort; for given cohorts the maximum."""
        return self.size if self.num_rounds is None else self.largest

    @property
    def largest(self) -> int:
        """Maximum number of clients in a cohort."""
        with in_code_of("data.client_sampler", self.sampler):
            return self.sampler.largest(self.num_clients, self.size)

    @property
    def said_by(self) -> str:
        """The source of the cohorts, for messages: the key, with the class of a sampler."""
        kind = type(self.sampler)
        return "data.cohorts" if kind is FixedCohorts else f"data.client_sampler {kind.__name__}"

    def _refusal(self, drawn: str, round: int) -> ValueError:
        count = "each once" if self.sampler.may_be_empty else "each once and at least one"
        return ValueError(
            f"{self.said_by} names {drawn} in round {round}, must name clients between 0 and {self.num_clients - 1}, {count}"
        )


def participation(
    client_sampler: ClientSampler | None,
    cohorts: Sequence[Sequence[int]] | None,
    clients_per_round: int | float,
    num_clients: int,
    seed: int,
    devices: Devices | None = None,
) -> Participation:
    """The participation for the arguments of the data module; ``clients_per_round`` is ignored if ``cohorts`` are given.

    The size is the number of clients to draw, which can be more than ``clients_per_round`` if some are late.

    Raises:
        ValueError: if a value is out of range, both a sampler and cohorts are given, or the cohort of round 1, or a given one,
            has anything other than clients, each once.
    """
    if devices is not None and not isinstance(devices, Devices):
        raise ValueError(f"data.devices is {devices!r}, must be a Devices: such as Devices(lost_uploads=0.1)")
    if cohorts is None:
        sampler, size = Uniform() if client_sampler is None else client_sampler, cohort_size(clients_per_round, num_clients)
    elif devices is not None and devices.over_selection != 1:
        raise ValueError(
            f"data.devices.over_selection is {devices.over_selection}, but data.cohorts names who takes part: leave one out"
        )
    elif client_sampler is not None:
        raise ValueError(f"data.client_sampler is {client_sampler}, but data.cohorts names who takes part: leave one out")
    elif len(cohorts) == 0:
        raise ValueError("data.cohorts is empty, must name the clients of at least one round")
    else:
        sampler, size = FixedCohorts(cohorts), num_clients
    size = size if devices is None else devices.drawn(size, num_clients)
    drawn = Participation(sampler, num_clients, size, seed)
    drawn.sampler.check(num_clients)
    for round in range(1, (drawn.num_rounds or 1) + 1):
        drawn.cohort(round)
    if drawn.num_rounds is None and drawn.cohort(1) != drawn.cohort(1):
        raise ValueError(
            f"{drawn.said_by} draws other clients when it is asked for round 1 again: draw from round and seed only, as by "
            "fl_lightning.functional.random_streams.numpy_stream"
        )
    return drawn


def _index(client: Any) -> int:
    """The number of a client; a mask is not one."""
    if isinstance(client, bool) or (isinstance(client, torch.Tensor) and client.dtype == torch.bool):
        raise TypeError
    return operator.index(client)


def cohort_size(clients_per_round: int | float, num_clients: int) -> int:
    """Clients of a cohort: a whole number is a count, a number with a point a fraction of N, with at least one client.

    Raises:
        ValueError: if it is out of range.
    """
    if isinstance(clients_per_round, float | np.floating):
        hint = "it is a fraction, write a whole number for a count"
        check_range("data.clients_per_round", clients_per_round, above=0, at_most=1, hint=hint)
        return max(int(clients_per_round * num_clients + 1e-9), 1)
    hint = f"data.num_clients is {num_clients}"
    check_whole("data.clients_per_round", clients_per_round, at_least=1, at_most=num_clients, hint=hint)
    return clients_per_round
