"""The table of ``--forgetting``: any definition of forgetting, computed from the matrices in the records of runs."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fl_lightning.checks import check_choice
from fl_lightning.forgetting import DEFINITIONS, Definition, Matrix
from fl_lightning.functional.forgetting import mean_over_rounds
from fl_lightning.report.log import Log
from fl_lightning.report.measured_rounds import class_curves, class_names, client_forgetting_rounds, ends_of_domains
from fl_lightning.report.study import Spread, Study
from fl_lightning.report.tables import DASH, Table, means_and_sds, spread

_NEEDED: dict[Matrix, str] = {
    "classes": "the accuracy of each class in two rounds or more: set callbacks.per_class_accuracy and data.monitor_test",
    "clients": "the accuracy of each client's model on the data of the others: set callbacks.client_forgetting.every",
    "local": "local forgetting: set callbacks.round_forgetting.clients_every and data.monitor_test",
    "losses": "losses on the data of the round before: add the callback LossIncrease",
    "tasks": "tasks that were learned one after another: set data.tasks",
}

_AHEAD = "accuracies on tasks before they are learned: set data.tasks to DomainStream, and data.monitor_test"
_CHANGES = {"local": "clients/local_change", "losses": "clients/loss_increase"}


def definitions_named(names: str) -> list[str]:
    """The definitions in ``chaudhry,flashback``.

    Raises:
        ValueError: naming one that is unknown, or needs another run.
    """
    found = [name.strip() for name in names.split(",")]
    for name in found:
        check_choice("--forgetting", name, DEFINITIONS)
        if DEFINITIONS[name].reference == "joint":
            raise ValueError(
                f"--forgetting is {name!r}, which compares a run with one that learned all tasks together: compute it in "
                "Python, as docs/how_forgetting_is_measured.md does"
            )
    return list(dict.fromkeys(found))


def defined_forgetting(study: Study, names: Sequence[str]) -> Table:
    """A column for each definition: its score with the sign of :meth:`Definition.shown`, over seeds."""
    rows, records = [], []
    for group in study.finished:
        found = [[score_of(run.log, DEFINITIONS[name]) for run in group.runs] for name in names]
        scores = [Spread.of_all([score for score in of if score == score], len(of)) for of in found]
        rows.append([group.label, *map(spread, scores)])
        records.append({"method": group.label} | means_and_sds(names, scores))
    described = " ".join(f"{name}: {DEFINITIONS[name].title} ({DEFINITIONS[name].source})." for name in names)
    note = "Mean ± standard deviation over seeds; positive is forgetting, but for accuracies; "
    note += f"{DASH} where a run did not measure it. {described} "
    note += "What is measured in several rounds is the mean over all but round 1; of clients, the mean over clients."
    return Table("forgetting_by_definition", "Forgetting by definition", note, ["method", *names], rows, records)


def missing_matrices(study: Study, names: Sequence[str]) -> list[str]:
    """A remark for each definition that no run has measured."""
    logs = [run.log for group in study.finished for run in group.runs]
    missing = [name for name in names if all(np.isnan(score_of(log, DEFINITIONS[name])) for log in logs)]
    needed = {name: _AHEAD if DEFINITIONS[name].reference else _NEEDED[DEFINITIONS[name].matrix] for name in missing}
    return [f"--forgetting has {name}, but no run measured {what}" for name, what in needed.items()]


def score_of(log: Log, definition: Definition) -> float:
    """A definition's score of one run, with the sign of :meth:`Definition.shown`; NaN where the run lacks the matrix.

    Definitions on one round are the mean over the measured rounds without the first, as the report's other tables; those on
    tasks the mean over the clients that learned two or more. The net that a run begins with is the untrained one.
    """
    if definition.matrix in ("clients", "local", "losses"):
        scores = {round: definition.shown(change) for round, change in _changes(log, definition.matrix).items()}
        by_round = {round: score for round, score in scores.items() if score == score}  # NaN with one client
        return mean_over_rounds(by_round) if by_round else float("nan")
    if definition.matrix == "classes":
        accuracies = _class_accuracies(log)
        return definition.shown(accuracies) if len(accuracies) > 1 else float("nan")
    tables = [table for table in _task_tables(log) if len(table) > 1]
    if definition.reference:
        return _against_untrained(log, definition, tables)
    return float(np.mean([definition.shown(table) for table in tables])) if tables else float("nan")


def _against_untrained(log: Log, definition: Definition, tables: Sequence[Tensor]) -> float:
    ahead = log.tensors.get("tasks/ahead", {})
    if not tables or 0 not in ahead:
        return float("nan")
    table = tables[0]
    before = np.fmax.reduce([accuracies for round, accuracies in ahead.items() if round > 0])  # fmax: each has one number
    table.diagonal(1).copy_(torch.from_numpy(before[1 : len(table)]))
    return definition.shown(table, torch.from_numpy(ahead[0][: len(table)]))


def _changes(log: Log, matrix: Matrix) -> dict[int, Tensor]:
    """What local fits changed, by round; of clients F_ki (K, K)."""
    if matrix == "clients":
        after, before = (log.tensors.get(f"clients/accuracy_{when}", {}) for when in ("after", "before"))
        return {round: torch.from_numpy(after[round] - before[round]) for round in client_forgetting_rounds(log)}
    return {round: torch.from_numpy(change) for round, change in log.tensors.get(_CHANGES[matrix], {}).items()}


def _class_accuracies(log: Log) -> Tensor:
    """(T, C), after the evaluated rounds from 1 on, or since the last domain arrived; NaN where a class had not arrived."""
    rounds, accuracies = class_curves(log, class_names(log))
    return torch.from_numpy(accuracies[:, rounds > max([0, *ends_of_domains(log)])].T).float()


def _task_tables(log: Log) -> list[Tensor]:
    """(T, T) of the tasks that each client, or the global model, has learned."""
    newest = max(log.tensors.get("tasks/client_tables", log.tensors.get("tasks/table", {})).items(), default=None)
    if newest is None:
        return []
    tables = torch.from_numpy(newest[1]).reshape(-1, *newest[1].shape[-2:])
    return [table[learned][:, learned] for table in tables for learned in [~table.diagonal().isnan()]]
