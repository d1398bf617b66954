"""Two sides compared, runs or whole sweeps: in which settings they differ, and by how much what came out does."""

import math
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from rich import table as rich_table
from rich.console import Console
from rich.text import Text

from fl_lightning.callbacks.forgetting_names import forgetting_name
from fl_lightning.report.costs import megabytes, simulated_seconds, time_of_rounds
from fl_lightning.report.forgetting import forgotten
from fl_lightning.report.groups import Group, group_runs
from fl_lightning.report.runs import Run
from fl_lightning.report.safe_text import one_line, shortened
from fl_lightning.report.study import (
    INTERVAL_IS,
    TASKS,
    Spread,
    check_same_data,
    common_metric,
    final_value,
    holm,
    measured_runs,
    paired_test,
)
from fl_lightning.report.tables import DASH, Table, compared, spread

_PROVENANCE = ("version", "commit")  # of results.json
_FORGETTING = "forgetting/"
_SECONDS = "seconds"  # which say as much of the machine
_WIDE = 200  # columns where there is no terminal
Measure = Callable[[Run], float]


@dataclass(frozen=True)
class Pair:
    """Runs on both sides that share all settings but those in which the sides differ."""

    label: str  # what sets it apart from other pairs
    first: Group
    second: Group


def compare(first: Sequence[Run], second: Sequence[Run]) -> tuple[Table, Table, list[str]]:
    """The settings in which two sides differ, what came out on each, and remarks on what was left out.

    Raises:
        ValueError: if a side has logged no accuracy or has no finished run, the sides are of several datasets or have no
            accuracy in common, or nothing on them belongs together.
    """
    (first, said), (second, said_too) = _finished("FIRST", first), _finished("SECOND", second)
    remarks, runs = [*said, *said_too], [*first, *second]
    check_same_data(runs)
    measures = _measures(runs)
    (groups, said), (others, said_too) = group_runs(first), group_runs(second)
    differing = differing_settings(groups, others)
    found, alone = pairs(groups, others, differing)
    if not found:
        raise ValueError(
            "SECOND has no run that belongs to one of FIRST: the sides may differ in settings that are the same within each, "
            "and in no other"
        )
    remarks += [*said, *said_too, *(f"{group.label}: left out, on one side only" for group in alone)]
    differing |= _provenance(first, second)
    return _settings(differing), _outcome(found, measures), remarks


def _finished(name: str, side: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """The runs of a side that are compared, and remarks on the others."""
    measured, remarks = measured_runs(side)
    finished = [run for run in measured if run.finished]
    if not finished:
        raise ValueError(f"{name} has no finished run: {measured[0].folder} is not at its last round, wait or resume it")
    return finished, [*remarks, *(f"{run.folder}: left out, it is not finished" for run in measured if run not in finished)]


def differing_settings(first: Sequence[Group], second: Sequence[Group]) -> dict[str, tuple[str, str]]:
    """Keys that have no value on both sides, with the values of each side as text.

    What varies on both sides, as the axes of two sweeps do, does not set them apart.
    """
    keys = dict.fromkeys(key for group in (*first, *second) for key in group.config)
    values = {key: [dict.fromkeys(group.config.get(key) for group in side) for side in (first, second)] for key in keys}
    return {key: (_listed(a), _listed(b)) for key, (a, b) in values.items() if a.keys().isdisjoint(b)}


def _listed(values: Iterable[Hashable]) -> str:
    return ", ".join(DASH if value is None else shortened(str(value)) for value in values)


def pairs(first: Sequence[Group], second: Sequence[Group], differing: Iterable[str]) -> tuple[list[Pair], list[Group]]:
    """Groups of two sides that belong together, and those without a partner.

    Raises:
        ValueError: if a side has several groups that differ in nothing but what sets the sides apart.
    """
    keys = tuple(differing)
    sides = [{group.setting(*keys): group for group in side} for side in (first, second)]
    for name, side, by_setting in zip(("FIRST", "SECOND"), (first, second), sides, strict=True):
        if len(by_setting) < len(side):
            raise ValueError(
                f"{name} has runs that differ in {', '.join(keys)}, in which FIRST and SECOND differ too: give each side the "
                "runs of one value"
            )
    ours, theirs = sides
    found = [Pair(group.label_without(*keys), group, theirs[setting]) for setting, group in ours.items() if setting in theirs]
    alone = [group for side, other in (sides, sides[::-1]) for setting, group in side.items() if setting not in other]
    return found, alone


def _measures(runs: Sequence[Run]) -> dict[str, Measure]:
    """What all runs have measured, by its name."""
    metric = common_metric(runs)
    common = set.intersection(*(set(run.log.scalars) for run in runs))
    measures: dict[str, Measure] = {
        f"{metric}, final": lambda run: final_value(run.log.scalars[metric].after(0), metric),
    }
    if metric != TASKS:  # of tasks that arrive, the best accuracy is that of the first
        measures[f"{metric}, best"] = lambda run: float(run.log.scalars[metric].after(0).values.max())
    for name in sorted(common & {"tasks/forgetting", "tasks/backward_transfer"}):
        measures[name] = lambda run, name=name: run.log.newest(name)
    for name in sorted(name for name in common if name.startswith(_FORGETTING)):
        label = f"{forgetting_name(name)}, mean over rounds"
        measures[label] = lambda run, name=name: forgotten(run, name)
    if "communication/total_up" in common:
        measures["MB up"] = lambda run: megabytes(run, "up")
    if "communication/total_seconds" in common:
        measures["simulated seconds"] = simulated_seconds
    measures[_SECONDS] = lambda run: time_of_rounds(run)[1]
    return measures


def _provenance(first: Sequence[Run], second: Sequence[Run]) -> dict[str, tuple[str, str]]:
    """The package's version and commit, where the sides have other ones."""
    found = {}
    for key in _PROVENANCE:
        a, b = (dict.fromkeys(run.results.get(key) for run in side if run.results) for side in (first, second))
        if a != b:
            found[f"fl-lightning's {key}"] = _listed(a), _listed(b)
    return found


def _settings(differing: dict[str, tuple[str, str]]) -> Table:
    rows = [[key, *values] for key, values in differing.items()]
    records = [{"setting": key, "first": a, "second": b} for key, (a, b) in differing.items()]
    return Table("settings", "Settings that differ", "", ["setting", "first", "second"], rows, records)


def _outcome(found: Sequence[Pair], measures: dict[str, Measure]) -> Table:
    scored = [(pair, name, *_scores(pair, measure)) for pair in found for name, measure in measures.items()]
    tests = [paired_test(theirs, ours) for _, _, ours, theirs in scored]
    corrected = holm([math.nan if name == _SECONDS else p for (_, name, *_), (_, p) in zip(scored, tests, strict=True)])
    has_intervals = any(not math.isnan(differences.interval[0]) for differences, _ in tests)
    rows, records = [], []
    for (pair, name, *sides), (differences, _), p_holm in zip(scored, tests, corrected, strict=True):
        texts = [spread(Spread(tuple(side.values()))) for side in sides]
        cells = compared(differences, p_holm, has_interval=has_intervals)
        rows.append([*([pair.label or DASH] if len(found) > 1 else []), name, *texts, *cells])
        means = {f"{of}_mean": Spread(tuple(side.values())).mean for of, side in zip(("first", "second"), sides, strict=True)}
        low, high = differences.interval
        counted = {"pairs": len(differences.values), "difference": differences.mean, "low": low, "high": high, "p_holm": p_holm}
        records.append({"runs": pair.label, "measure": name} | means | counted)
    num_tests = sum(not math.isnan(p) for p in corrected)
    between = f" its interval is that of the mean difference, {INTERVAL_IS};" * has_intervals
    note = (
        "Mean ± standard deviation over seeds; the second less the first over the seeds that both have, in brackets how many;"
        f"{between} p of Student's paired t test, two-sided, "
        + (f"corrected for the {num_tests} tests of this table by Holm's method." if num_tests > 1 else "not corrected.")
    )
    columns = [*(["runs"] if len(found) > 1 else []), "measure", "first", "second", "second - first (pairs)"]
    columns += [*(["its 95 % interval"] if has_intervals else []), "p (Holm)"]
    return Table("comparison", "Comparison", note, columns, rows, records, texts=columns.index("first"))


def _scores(pair: Pair, measure: Measure) -> tuple[dict[int, float], dict[int, float]]:
    """By seed, of either side."""
    return {run.seed: measure(run) for run in pair.first.runs}, {run.seed: measure(run) for run in pair.second.runs}


def show(settings: Table, outcome: Table) -> None:
    """Print what :func:`compare` found."""
    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)
    console.print(_drawn(settings) if settings.rows else "No setting differs.")
    console.print(_drawn(outcome))
    console.print(outcome.note)


def _drawn(table: Table) -> rich_table.Table:
    drawn = rich_table.Table(title=table.title, title_justify="left")
    for place, column in enumerate(table.columns):
        drawn.add_column(column, justify="right" if place >= table.texts else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(one_line(cell)) for cell in row))
    return drawn
