"""What a log has of clients and classes: of one that is cut off or goes on, a part may be missing."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_lightning.report.log import Log
from fl_lightning.report.safe_text import one_line


def client_forgetting_rounds(log: Log) -> list[int]:
    """Rounds, ascending, with all of who forgets whose data in a log: cohort, accuracies before and after the fits."""
    cohort, before, after = (_by_round(log, name) for name in ("cohort", "accuracy_before", "accuracy_after"))
    common = cohort.keys() & before.keys() & after.keys()
    return sorted(
        round
        for round in common
        if after[round].shape == cohort[round].shape * 2 and before[round].shape in (cohort[round].shape, after[round].shape)
    )


def one_round_rounds(log: Log) -> list[int]:
    """Rounds, ascending, of which a log has all of one round by class: clients, and accuracies before, within and after it."""
    cohort, values = (_by_round(log, name) for name in ("class_cohort", "class_accuracy"))
    return sorted(round for round in cohort.keys() & values.keys() if len(values[round]) == len(cohort[round]) + 2)


def rounds_of_clients(log: Log, name: str, cohort: str, more: int = 0) -> list[int]:
    """Rounds, ascending, of which a log has clients and a tensor with a row for each of them, and ``more`` rows."""
    clients, values = (log.tensors.get(one, {}) for one in (cohort, name))
    return sorted(round for round in values if len(values[round]) == len(clients.get(round, ())) + more > more)


def cohort_rounds(log: Log) -> list[int]:
    """Rounds, ascending, in which anything was logged and whose clients are known.

    The others are not listed, as one that is far off may be claimed by a few bytes.
    """
    logged = _by_round(log, "round_cohort")
    rounds = {int(round) for session in log.sessions for round in session[:, 0]} if logged else set()
    return sorted(round for round in rounds if round >= min(logged))


def cohort(log: Log, round: int) -> list[int] | None:
    """Who took part in a round, which is logged where it changes; None where the log does not have it."""
    logged = _by_round(log, "round_cohort")
    newest = max((one for one in logged if one <= round), default=None)
    return None if newest is None or round > log.last_round else logged[newest].astype(np.int64).tolist()


def class_names(log: Log) -> list[str]:
    """Names of the classes with a logged accuracy: in the order of the labels if the record has them, else as logged."""
    prefix = "class_accuracy/"
    found = [name.removeprefix(prefix) for name in log.scalars if name.startswith(prefix)]
    return sorted(found, key=log.classes.index) if set(found) <= set(log.classes) else found


def class_curves(log: Log, names: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Rounds (n,), ascending, in which any of some classes was measured, and the accuracies (classes, n) in them.

    A class without one is NaN, as before it arrives.
    """
    curves = [log.scalars[f"class_accuracy/{name}"] for name in names]
    rounds = np.unique(np.concatenate([np.empty(0, np.int64), *(curve.rounds for curve in curves)]))
    values = np.full((len(curves), len(rounds)), np.nan)
    for row, curve in zip(values, curves, strict=True):
        row[np.searchsorted(rounds, curve.rounds)] = curve.values
    return rounds, values


def ends_of_domains(log: Log) -> list[int]:
    """Rounds after which another domain arrives, with which the test set grows."""
    return [round for round in log.tensors.get("tasks/ahead", {}) if round < log.last_round]


def class_labels(log: Log, count: int) -> list[str]:
    """Of so many classes, in one line each: their names, where the record has as many, else their numbers."""
    for names in (log.classes, class_names(log)):
        if len(names) == count:
            return list(map(one_line, names))
    return list(map(str, range(count)))


def logged_tensor(log: Log, name: str, round: int) -> Tensor:
    """A tensor of a round, in float64."""
    return torch.from_numpy(log.tensors[name][round].astype(np.float64))


def logged_clients(log: Log, name: str, round: int) -> list[int]:
    """The clients that a tensor of a round lists."""
    return log.tensors[name][round].astype(np.int64).tolist()


def _by_round(log: Log, name: str) -> Mapping[int, NDArray]:
    return log.tensors.get(f"clients/{name}", {})
