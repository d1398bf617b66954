"""The clients' positions in their sequences of tasks, the decay of their learning rates, and the end of a task."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fl_lightning.algorithm import checked_cohort, who_draws
from fl_lightning.checks import check_range
from fl_lightning.functional.exact_buffers import ExactBuffers
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import Client

Schedule = Literal["synchronous", "asynchronous"]


class Clock(NamedTuple):
    """A client's progress in its task."""

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


def is_visited_within(method: FederatedModule, client: Client, rounds: int) -> bool:
    """Whether a client is visited in one of this many rounds after the present one."""
    last, named = client.round + rounds, method.data.participation.num_rounds
    last = last if named is None else min(last, named)
    return any(_is_visited(method, client, round) for round in range(client.round + 1, last + 1))


def refuse_another_visit(method: FederatedModule, client: Client) -> None:
    """Refuse a client that ended its task when later cohorts had no name yet.

    Raises:
        ValueError: if the client is visited in this round; a rehearsal can be of one that is drawn for its next task.
    """
    if _is_visited(method, client, client.round):
        raise ValueError(
            f"{who_draws(method)} names client {client.index} in round {client.round}, but it was through with "
            "its task when the run stopped: name it from its next task on"
        )


def _is_visited(method: FederatedModule, client: Client, round: int) -> bool:
    return any(visit.client == client.index for visit in checked_cohort(method, round))


class TaskClocks(ExactBuffers):
    """The clocks of N clients that learn T tasks each, one tick a round; buffers, which checkpoints hold. A global model that
    learns a sequence has one of N = 1.

    Between two ticks, queries read copies on the host. :meth:`read` makes these copies again after a tick, and whenever the
    buffers were replaced.

    Args:
        num_clients: N.
        num_tasks: T.
        rounds_per_task: R, rounds after which a task is over.
        schedule: ``synchronous``: all clients change tasks together; ``asynchronous``: each by itself.
        first_rate: learning rate at the start of every task, above 0.
        smallest_rate: learning rate below which a client has finished its task.

    Raises:
        ValueError: if ``first_rate`` is not above 0, or is below ``smallest_rate``.
    """

    position: Tensor
    """(N,), of each client's task in its sequence; T: it has learned all."""
    rounds_in_task: Tensor
    """(N,), rounds of it that are over."""
    rate_factor: Tensor
    """(N,) float64, on each client's learning rate."""

    def __init__(
        self,
        num_clients: int,
        num_tasks: int,
        rounds_per_task: int,
        schedule: Schedule = "synchronous",
        first_rate: float = 1.0,
        smallest_rate: float = 0.0,
    ) -> None:
        super().__init__()
        check_range("model.optimizer.lr", first_rate, above=0, hint="on task streams it is divided")
        hint = "that is model.optimizer.lr, and below the smallest rate a client is done with its task"
        check_range("model.tasks.smallest_rate", smallest_rate, at_most=first_rate, hint=hint)
        self.num_tasks, self.rounds_per_task, self._together = num_tasks, rounds_per_task, schedule == "synchronous"
        self._smallest_factor = smallest_rate / first_rate
        self.register_buffer("position", torch.zeros(num_clients, dtype=torch.int64))
        self.register_buffer("rounds_in_task", torch.zeros(num_clients, dtype=torch.int64))
        self.register_buffer("rate_factor", torch.ones(num_clients, dtype=torch.float64))
        self.read()

    def read(self) -> None:
        """Copy the buffers to the host."""
        self.positions: list[int] = self.position.tolist()
        """Each client's ``position``."""
        self.factors: list[float] = self.rate_factor.tolist()
        """Each client's ``rate_factor``."""
        self.rounds: list[int] = self.rounds_in_task.tolist()
        """Each client's ``rounds_in_task``."""

    @property
    def is_over(self) -> bool:
        """Whether every client has learned all its tasks."""
        return min(self.positions) == self.num_tasks

    def learns(self, client: int) -> bool:
        """Whether a client is still in its task; with synchronous tasks it may have finished and wait for others."""
        return self.positions[client] < self.num_tasks and self.factors[client] >= self._smallest_factor

    def has_had_all_rounds(self, client: int) -> bool:
        """Whether a client's task has had all its rounds."""
        return self.rounds[client] >= self.rounds_per_task

    def is_last_round(self, client: int) -> bool:
        """Whether the present round is the last of this many."""
        return self.rounds[client] == self.rounds_per_task - 1

    def is_last_visit(self, client: int, clock: Clock, is_visited_within: Callable[[int], bool]) -> bool:
        """Whether a client will not be visited again in its task.

        Args:
            clock: the client's, at the end of the present visit.
            is_visited_within: whether the client is visited in one of so many next rounds, at least 1.
        """
        left = self.rounds_per_task - self.rounds[client] - 1
        if clock.factor < self._smallest_factor or left <= 0:
            return True
        return self._together and not is_visited_within(left)

    def tick(self, visited: Sequence[int], factors: Mapping[int, Tensor]) -> None:
        """A round is over.

        Args:
            visited: clients that took part, including those with a lost update, which might never finish otherwise.
            factors: on the learning rate, of clients with an update that was not lost.
        """
        for client, factor in factors.items():
            self.rate_factor[client] = factor
        self.rounds_in_task[slice(None) if self._together else visited] += 1
        self.read()

    def go_on(self) -> None:
        """Clients that have finished go on to the next task."""
        stopped = self.rate_factor < self._smallest_factor
        done = (self.rounds_in_task >= self.rounds_per_task) | (stopped.all() if self._together else stopped)
        done &= self.position < self.num_tasks
        self.position += done
        self.rounds_in_task.masked_fill_(done, 0)
        self.rate_factor.masked_fill_(done, 1.0)
        self.read()
