"""How a sweep stands: a row for each point, on the screen and in ``results.csv``."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from statistics import mean, stdev

from rich.table import Table

from fl_lightning.functional.accuracy_curves import FINAL_IS
from fl_lightning.sweep.points import Point, point_name, short_keys
from fl_lightning.sweep.study import Record

_SHOWN = {"test_accuracy": "final test accuracy", "val_accuracy": "final val accuracy", "tasks/accuracy": "task accuracy"}
_ORDER = ("running", "done", "failed", "pruned", "waiting")


@dataclass
class Row:
    """What the runs of a point have in common, and what they measured."""

    point: Point
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_ORDER, 0))
    values: dict[str, list[float]] = field(default_factory=dict)  # of the runs that are done, by metric
    errors: dict[int, str] = field(default_factory=dict)  # by seed

    def mean(self, metric: str) -> float | None:
        """Over the runs that are done; None where one lacks the metric, failed or was pruned: the others would flatter."""
        return mean(values) if (values := self._of_all(metric)) else None

    def deviation(self, metric: str) -> float | None:
        """Sample standard deviation over seeds; None with one seed, which tells nothing of it."""
        return stdev(values) if len(values := self._of_all(metric)) > 1 else None

    def _of_all(self, metric: str) -> list[float]:
        values = self.values.get(metric, [])
        ended = self.counts["done"] + self.counts["failed"] + self.counts["pruned"]
        return values if len(values) == ended else []


def rows(records: Iterable[Record]) -> list[Row]:
    """A row for each point, in the order in which the points come."""
    by_name: dict[str, Row] = {}
    for record in records:
        row = by_name.setdefault(point_name(record.run.point), Row(record.run.point))
        row.counts[record.stands] += 1
        if record.stands == "failed":
            row.errors[record.run.seed] = record.error
        for metric, value in record.metrics.items():
            row.values.setdefault(metric, []).append(value)
    return list(by_name.values())


def as_table(rows: Sequence[Row], progress: Mapping[str, str] = {}, most: int | None = None) -> Table:
    """The rows as a table, the best point by validation accuracy in bold.

    Args:
        rows: of the sweep.
        progress: by a point's name, how its runs stand that are under way here.
        most: of more rows than this, those are shown that are under way or have changed last.
    """
    shown = [metric for metric in _SHOWN if any(metric in row.values for row in rows)] or ["test_accuracy", "val_accuracy"]
    best = max(rows, key=lambda row: row.mean("val_accuracy") or -1.0, default=None)
    table = Table(caption="\n".join(filter(None, (_left_out(rows, most), _caption(shown)))))
    for key in short_keys(rows[0].point) if rows else ():
        table.add_column(key, overflow="fold")
    for metric in shown:
        table.add_column(_SHOWN[metric], justify="right")
    table.add_column("runs", overflow="fold")
    for row in _most_telling(rows, most):
        scores = [_score(row.mean(metric), row.deviation(metric)) for metric in shown]
        runs = progress.get(point_name(row.point), "") or _counts(row)
        style = "bold" if row is best and row.mean("val_accuracy") is not None else None
        table.add_row(*row.point.values(), *scores, runs, style=style)
    return table


def as_csv(rows: Sequence[Row]) -> str:
    """The rows with every metric: its mean, and its deviation where more than one seed is done."""
    metrics = list(dict.fromkeys(metric for row in rows for metric in row.values))
    text = StringIO()
    keys = list(rows[0].point) if rows else []
    names = [name for metric in metrics for name in (metric, f"{metric}_sd")]
    writer = csv.writer(text)
    writer.writerow([*keys, *_ORDER, *names, "errors"])
    for row in rows:
        scores = [score for metric in metrics for score in (row.mean(metric), row.deviation(metric))]
        errors = "; ".join(f"seed {seed}: {error}" for seed, error in row.errors.items())
        writer.writerow([*row.point.values(), *row.counts.values(), *scores, errors])
    return text.getvalue()


def totals(rows: Iterable[Row]) -> str:
    """How many runs stand how, such as ``12 done, 1 failed``."""
    total = Row({})
    for row in rows:
        for stands, count in row.counts.items():
            total.counts[stands] += count
    return _counts(total)


def _counts(row: Row) -> str:
    return ", ".join(f"{count} {stands}" for stands, count in row.counts.items() if count) or "no runs"


def _score(mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return "-"
    return f"{mean:.4f}" if deviation is None else f"{mean:.4f} ± {deviation:.4f}"


def _most_telling(rows: Sequence[Row], most: int | None) -> list[Row]:
    if most is None or len(rows) <= most:
        return list(rows)
    begun = [row for row in rows if row.counts["waiting"] < sum(row.counts.values())]
    running = [row for row in begun if row.counts["running"]]
    kept = (running + [row for row in reversed(begun) if not row.counts["running"]])[:most]
    return [row for row in rows if any(row is one for one in kept)]


def _caption(shown: Sequence[str]) -> str | None:
    """What the numbers are."""
    return f"Final: {FINAL_IS}." if {"test_accuracy", "val_accuracy"} & set(shown) else None


def _left_out(rows: Sequence[Row], most: int | None) -> str | None:
    hidden = len(rows) - len(_most_telling(rows, most))
    return f"and {hidden} more" if hidden else None
