"""Heatmaps of one run in one round, as numbers for the page."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_lightning.report.log import Log, thinned
from fl_lightning.report.measured_rounds import (
    class_curves,
    class_labels,
    class_names,
    client_forgetting_rounds,
    cohort,
    cohort_rounds,
    logged_clients,
    one_round_rounds,
)
from fl_lightning.report.runs import Run

_MOST_COLUMNS, _MOST_ROWS = 120, 60  # of a heatmap over rounds, and of who took part


@dataclass(frozen=True, eq=False)
class Heatmap:
    """Values with the names of their rows and columns.

    ``values`` is (rows, columns), accuracies in [0, 1], or forgetting in [-1, 1], positive where accuracy is lost.
    ``clients`` took part in the round, None where that was not logged.
    """

    rows: list[str]
    columns: list[str]
    values: NDArray
    clients: list[int] | None = None


@dataclass(frozen=True)
class Kind:
    """A kind of heatmap: what it is called and says, its rows and columns, the rounds that it can be drawn of, and how."""

    title: str
    note: str
    axes: tuple[str, str]
    rounds: Callable[[Log], list[int]]
    draw: Callable[[Log, int], Heatmap]
    diverging: bool = False

    def described(self) -> dict[str, Any]:
        """For the page."""
        return {"title": self.title, "note": self.note, "axes": self.axes, "diverging": self.diverging}


def measured_rounds(run: Run) -> dict[str, list[int]]:
    """By kind, the rounds that `heatmap` can show, ascending; kinds without any are left out."""
    found = {name: kind.rounds(run.log) for name, kind in KINDS.items()}
    return {kind: rounds for kind, rounds in found.items() if rounds}


def heatmap(run: Run, kind: str, round: int) -> Heatmap:
    """One heatmap of a kind.

    Args:
        kind: ``forgetting``, what the local fit of each client, a row, costs in accuracy on the validation part of each, a
            column; ``after``, the accuracy after the fits; ``by_class``, the test accuracy by class of the global model before
            the round, of each client, and of the global model after; ``classes``, that of the global model up to the round;
            ``cohorts``, who took part in the rounds up to it, 1 or 0, or of several clients in one row the share that did.
        round: one of `measured_rounds`.

    Raises:
        KeyError: if that was not measured.
    """
    if round not in KINDS[kind].rounds(run.log):
        raise KeyError(kind, round)
    return KINDS[kind].draw(run.log, round)


def _forgetting(log: Log, round: int) -> Heatmap:
    shown = _after(log, round)
    return replace(shown, values=log.tensors["clients/accuracy_before"][round] - shown.values)


def _after(log: Log, round: int) -> Heatmap:
    clients = logged_clients(log, "clients/cohort", round)
    names = list(map(str, clients))
    return Heatmap(names, names, log.tensors["clients/accuracy_after"][round], clients)


def _by_class(log: Log, round: int) -> Heatmap:
    values, clients = log.tensors["clients/class_accuracy"][round], logged_clients(log, "clients/class_cohort", round)
    columns = class_labels(log, values.shape[1])
    return Heatmap(["global before", *(f"client {client}" for client in clients), "global after"], columns, values, clients)


def _over_rounds(log: Log, round: int) -> Heatmap:
    rounds, values = class_curves(log, class_names(log))
    shown = thinned(int(np.searchsorted(rounds, round, side="right")), _MOST_COLUMNS)
    return Heatmap(class_labels(log, len(values)), list(map(str, rounds[shown])), values[:, shown], cohort(log, round))


def _cohorts(log: Log, round: int) -> Heatmap:
    rounds = np.array(cohort_rounds(log))
    rounds = rounds[rounds <= round]
    rounds = rounds[thinned(len(rounds), _MOST_COLUMNS)]
    known = log.tensors["clients/round_cohort"].values()
    num_clients = 1 + int(max((clients.max() for clients in known if len(clients)), default=0))
    together = -(-num_clients // _MOST_ROWS)
    starts = np.arange(0, num_clients, together)
    sizes = np.diff(starts, append=num_clients)
    cohorts = [cohort(log, each) or [] for each in rounds.tolist()]
    counts = [np.bincount(np.array(clients, np.int64) // together, minlength=len(starts)) for clients in cohorts]
    values = np.stack(counts, axis=1) / sizes[:, None]
    names = [f"{start} to {start + size - 1}" if size > 1 else str(start) for start, size in zip(starts, sizes, strict=True)]
    return Heatmap(names, list(map(str, rounds)), values, cohort(log, round))


_BY_CLIENT = ("model of client", "data of client")
KINDS = {
    "forgetting": Kind(
        "who forgets: accuracy that a local fit costs",
        "Accuracy of the received model less that after the local fit, on validation data. Positive, red, is forgetting.",
        _BY_CLIENT,
        client_forgetting_rounds,
        _forgetting,
        diverging=True,
    ),
    "after": Kind(
        "accuracy after the local fits",
        "Of the models of the clients that took part, on the validation data of each.",
        _BY_CLIENT,
        client_forgetting_rounds,
        _after,
    ),
    "by_class": Kind(
        "one round by class",
        "Test accuracy by class of the global model before the round, of each client that took part, and of the global model "
        "after.",
        ("model", "class"),
        one_round_rounds,
        _by_class,
    ),
    "classes": Kind(
        "accuracy by class, over rounds",
        "Test accuracy of the global model.",
        ("class", "round"),
        lambda log: class_curves(log, class_names(log))[0].tolist(),
        _over_rounds,
    ),
    "cohorts": Kind(
        "who took part, over rounds",
        "Of several clients in a row, the share of them.",
        ("client", "round"),
        cohort_rounds,
        _cohorts,
    ),
}
