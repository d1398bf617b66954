"""What ``tests/methods/test_<name>.py`` says of a method for the tests of all methods: what it needs, what a round costs.

``NEEDS`` is a pair of settings that the method cannot do without, those of the data and the others; with ``norm`` False the net
has no BatchNorm, with True it must. Where each task has a class layer ``ON_TASKS`` replaces the others. ``LEARNS_ONE_CLASS`` is
False where the class layer learns by a softmax over a client's classes, which is constant for one. ``COSTS`` has a
:class:`Cost` for the method and, under other settings, for ``"<Name>, <what differs>"``.
"""

import functools
import runpy
from pathlib import Path
from typing import Any, NamedTuple

from fl_lightning import methods

TESTS = Path(__file__).parents[1] / "methods"

# Of the tiny net of tests/methods/conftest.py, in bytes of float32; the counter of BatchNorm is an int64.
WEIGHTS, STATISTICS, HEAD = 4 * (3 * 5 + 5 + 5 + 24), 4 * (5 + 5) + 8, 4 * (5 * 4 + 4)
WITHOUT_NORM = 4 * (3 * 5 + 5 + 24)
NORM = 4 * (5 + 5) + STATISTICS  # the BatchNorm layer alone


class Cost(NamedTuple):
    """A client's part in a round: models with their statistics, sets of their weights alone, and bytes on top."""

    down: tuple[int, int, int] = (1, 0, 0)
    up: tuple[int, int, int] = (1, 0, 0)
    client: tuple[int, int, int] = (0, 0, 0)  # what it keeps
    server: tuple[int, int, int] = (0, 0, 0)  # what the server keeps in addition to the model
    first_up: int = 0  # bytes more at the first visit
    settings: dict[str, Any] = {}
    personal_by_rule: bool = False  # with a personal head on top nothing changes, or nothing is left to share


def needs_of(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the data, and the others; empty for a class that is no public method."""
    return _said(name).get("NEEDS", ({}, {}))


def needs_without_net(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same for a net that suits all."""
    of_data, others = needs_of(name)
    return of_data, {key: value for key, value in others.items() if key != "norm"}


def needs_on_tasks(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same in a federation that learns tasks."""
    of_data, others = needs_without_net(name)
    return of_data, _said(name).get("ON_TASKS", others)


def changes(name: str, *hooks: str) -> bool:
    """Whether a method does in one of these hooks anything but what FedAvg does."""
    return any(getattr(getattr(methods, name), hook) is not getattr(methods.FedAvg, hook) for hook in hooks)


def trains_at_the_server(name: str) -> bool:
    """Whether the server's model learns from public samples."""
    return getattr(methods, name).needs.data.public_samples


def costs_of(name: str) -> dict[str, Cost]:
    """By the method's name, and by what differs; a method of which nothing is said exchanges models alone."""
    return {name: Cost(), **_said(name).get("COSTS", {})}


def sends(name: str) -> bool:
    """Whether clients send anything."""
    return any(costs_of(name)[name].up)


def shares_body(name: str) -> bool:
    """Whether clients send more than a class layer."""
    return costs_of(name)[name].up[0] > 0


def keeps_head(name: str) -> bool:
    """Whether a class layer that is not sent stays with a client; else all have the initial one, or the server refuses it."""
    cost = costs_of(name)[name]
    return not trains_at_the_server(name) and (cost.up[2] != -HEAD or cost.client != (0, 0, 0))


def learns_one_class(name: str) -> bool:
    """Whether the class layer of a client with samples of one class learns from them."""
    return _said(name).get("LEARNS_ONE_CLASS", True)


@functools.cache
def _said(name: str) -> dict[str, Any]:
    file = TESTS / f"test_{name.lower()}.py"
    return runpy.run_path(str(file)) if file.is_file() else {}
