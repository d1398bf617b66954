"""The clients' positions in their sequences of tasks, the decay of their learning rates, and the end of a task."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from fl_lightning.checks import check_choice, check_range

Schedule = Literal["synchronous", "asynchronous"]


@dataclass(frozen=True)
class Pace:
    """How long a task lasts: R rounds, or until the learning rate has fallen so far.

    Args:
        rounds_per_task: R, at least 1.
        schedule: ``synchronous``: all clients change tasks together; ``asynchronous``: each by itself.
        patience: rounds without a lower validation loss, at least 1, that divide a client's learning rate.
        rate_divisor: divisor of the learning rate, above 1.
        smallest_rate: learning rate, at least 0, below which a client has finished its task.

    Raises:
        ValueError: if a value is out of range.
    """

    rounds_per_task: int = 20
    schedule: Schedule = "synchronous"
    patience: int = 5
    rate_divisor: float = 3.0
    smallest_rate: float = 1e-7

    def __post_init__(self) -> None:
        for name in ("rounds_per_task", "patience"):
            check_range(f"model.tasks.{name}", getattr(self, name), at_least=1)
        check_choice("model.tasks.schedule", self.schedule, Schedule)
        check_range("model.tasks.rate_divisor", self.rate_divisor, above=1, hint="the paper uses 3")
        check_range("model.tasks.smallest_rate", self.smallest_rate, at_least=0, hint="0 never ends a task early")


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


class TaskClocks(nn.Module):
    """The clocks of N clients that learn T tasks each, one tick a round; buffers, which checkpoints hold. A global model that
    learns a sequence has one of N = 1.

    Between two ticks, queries read copies on the host. :meth:`read` makes these copies again after a tick, and whenever the
    buffers were replaced.

    Args:
        num_clients: N.
        num_tasks: T.
        pace: how long a task lasts.
        first_rate: learning rate at the start of every task, above 0.

    Raises:
        ValueError: if ``first_rate`` is not above 0, or is below the rate at which tasks end.
    """

    position: Tensor
    """(N,), of each client's task in its sequence; T: it has learned all."""
    rounds_in_task: Tensor
    """(N,), rounds of it that are over."""
    rate_factor: Tensor
    """(N,) float64, on each client's learning rate."""

    def __init__(self, num_clients: int, num_tasks: int, pace: Pace, first_rate: float) -> None:
        super().__init__()
        check_range("model.optimizer.lr", first_rate, above=0, hint="on task streams it is divided")
        hint = "that is model.optimizer.lr, and below the smallest rate a client is done with its task"
        check_range("model.tasks.smallest_rate", pace.smallest_rate, at_most=first_rate, hint=hint)
        self.num_tasks, self.pace = num_tasks, pace
        self._smallest_factor = pace.smallest_rate / first_rate
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
        return self.rounds[client] >= self.pace.rounds_per_task

    def is_last_round(self, client: int) -> bool:
        """Whether the present round is the last of this many."""
        return self.rounds[client] == self.pace.rounds_per_task - 1

    def is_last_visit(self, client: int, clock: Clock, is_visited_within: Callable[[int], bool]) -> bool:
        """Whether a client will not be visited again in its task.

        Args:
            clock: the client's, at the end of the present visit.
            is_visited_within: whether the client is visited in one of so many next rounds, at least 1.
        """
        left = self.pace.rounds_per_task - self.rounds[client] - 1
        if clock.factor < self._smallest_factor or left <= 0:
            return True
        return self.pace.schedule == "synchronous" and not is_visited_within(left)

    def tick(self, visited: Sequence[int], factors: Mapping[int, Tensor]) -> None:
        """A round is over.

        Args:
            visited: clients that took part, including those with a lost update, which might never finish otherwise.
            factors: on the learning rate, of clients with an update that was not lost.
        """
        for client, factor in factors.items():
            self.rate_factor[client] = factor
        synchronous = self.pace.schedule == "synchronous"
        self.rounds_in_task[slice(None) if synchronous else visited] += 1
        self.read()

    def go_on(self) -> None:
        """Clients that have finished go on to the next task."""
        stopped, synchronous = self.rate_factor < self._smallest_factor, self.pace.schedule == "synchronous"
        done = (self.rounds_in_task >= self.pace.rounds_per_task) | (stopped.all() if synchronous else stopped)
        done &= self.position < self.num_tasks
        self.position += done
        self.rounds_in_task.masked_fill_(done, 0)
        self.rate_factor.masked_fill_(done, 1.0)
        self.read()
