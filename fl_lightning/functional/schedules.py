"""Schedules of learning rates by torch, which step once a round, or once a local step of a visit."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from fl_lightning.checks import first_line

# From an optimizer to a schedule of its rate.
ScheduleBuilder = Callable[[torch.optim.Optimizer], LRScheduler]
_MOST_ROUNDS = 100_000  # that are tried before a fit: about a second


def check_builder(key: str, build: object) -> None:
    """Refuse what builds no schedule, such as its name.

    Raises:
        ValueError: naming the key.
    """
    if not callable(build):
        raise ValueError(
            f"{key} is {build!r}, must build a schedule from an optimizer: "
            "such as lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 100)"
        )


def build_schedule(key: str, build: ScheduleBuilder, optimizer: torch.optim.Optimizer) -> LRScheduler:
    """A schedule of an optimizer's rate.

    Args:
        key: key of the config, for messages.

    Raises:
        ValueError: if it cannot be built, needs a metric, or no checkpoint can hold its state.
    """
    try:
        scheduler = build(optimizer)
    except (ValueError, TypeError, KeyError, ZeroDivisionError) as error:
        raise ValueError(f"{key} cannot be built ({first_line(error)}): change its arguments") from error
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ValueError(f"{key} is ReduceLROnPlateau, but a schedule steps without a metric: use another")
    try:
        scheduler.state_dict()
    except AttributeError as error:  # LambdaLR looks into functions, which those of C do not allow
        raise ValueError(
            f"{key} is {type(scheduler).__name__}, whose state no checkpoint can hold ({error}): give it a "
            "function of Python's, such as lambda round: math.sqrt(round)"
        ) from error
    return scheduler


class RateFactors:
    """The factor on a rate in each round, or each local step, by a schedule; a function of only its number.

    Args:
        key: key of the config, for messages.
        build: builds the schedule, of a rate of 1.
        unit: what is counted, for messages.

    Raises:
        ValueError: as :func:`build_schedule`.

    Example::

        >>> factors = RateFactors(
        ...     "model.client_lr_scheduler",
        ...     lambda one: torch.optim.lr_scheduler.StepLR(one, 2, gamma=0.5),
        ... )
        >>> [factors(round) for round in (1, 2, 3, 4, 5)]
        [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    def __init__(self, key: str, build: ScheduleBuilder, unit: str = "round") -> None:
        check_builder(key, build)
        self._key, self._build, self._unit = key, build, unit
        # With momentum, which some schedules change too.
        self._optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.9)
        self.scheduler = build_schedule(key, build, self._optimizer)
        self._factors = [self._present()]

    def __call__(self, round: int) -> float:
        """The factor in a round, counted from 1.

        Raises:
            ValueError: if the schedule ends before it, or fails.
        """
        while len(self._factors) < round:
            try:
                self._optimizer.step()  # torch warns of schedules that step before their optimizer
                self.scheduler.step()
            except (ValueError, ZeroDivisionError) as error:
                raise ValueError(
                    f"{self._key} is {_shown(self.scheduler)}, which fails after {self._unit} {len(self._factors)} "
                    f"({first_line(error)}): change its arguments"
                ) from error
            self._factors.append(self._present())
        return self._factors[round - 1]

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy begins anew: torch ties a schedule to its optimizer by functions that no copy follows."""
        return type(self), (self._key, self._build, self._unit)

    def mean(self, count: int) -> float:
        """The mean factor of the first ``count`` rounds or steps."""
        return sum(map(self, range(1, count + 1))) / count

    def _present(self) -> float:
        return float(self._optimizer.param_groups[0]["lr"])


def set_rates(optimizer: torch.optim.Optimizer, rates: Sequence[float], factor: float) -> None:
    """Set the rate of each group of weights to a factor times its rate in ``rates``."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * factor


def check_schedule(key: str, build: ScheduleBuilder, rounds: int) -> None:
    """Refuse, before round 1, a schedule that fails in a fit of so many rounds.

    Raises:
        ValueError: as :class:`RateFactors`.
    """
    RateFactors(key, build)(min(rounds, _MOST_ROUNDS) + 1)


def _shown(scheduler: LRScheduler) -> str:
    """``StepLR(step_size=0, gamma=0.1)``: its class, and those of its arguments that it keeps."""
    state: dict[str, Any] = scheduler.state_dict()
    given = {name: state[name] for name in inspect.signature(type(scheduler)).parameters if name in state}
    return (
        f"{type(scheduler).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items() if name != 'last_epoch')})"
    )
