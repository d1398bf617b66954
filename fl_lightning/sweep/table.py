"""The table of a sweep: a row for each point, on the screen and in ``results.csv``."""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO

from rich.table import Table
from rich.text import Text

from fl_lightning.functional.accuracy_curves import FINAL_IS
from fl_lightning.report.study import Spread
from fl_lightning.report.tables import mean_and_sd, spread
from fl_lightning.sweep.points import Point, point_name, short_keys
from fl_lightning.sweep.study import Record

_SHOWN = {"test_accuracy": "final test accuracy", "val_accuracy": "final val accuracy", "tasks/accuracy": "task accuracy"}
_ORDER = ("running", "done", "failed", "pruned", "waiting")


@dataclass
class Row:
    """A point, with the states and results of its runs."""

    point: Point
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_ORDER, 0))
    values: dict[str, list[float]] = field(default_factory=dict)  # of finished runs, by metric
    errors: dict[int, str] = field(default_factory=dict)  # by seed

    def over_seeds(self, metric: str) -> Spread:
        """Over finished runs; empty if one lacks the metric, failed or was pruned, as the others would be too good."""
        ended = self.counts["done"] + self.counts["failed"] + self.counts["pruned"]
        return Spread.of_all(self.values.get(metric, ()), ended)


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
        progress: by a point's name, the progress of its runs in this process.
        most: maximum number of rows; if there are more, those with running or the latest runs are shown.
    """
    shown = [metric for metric in _SHOWN if any(metric in row.values for row in rows)] or ["test_accuracy", "val_accuracy"]
    measured = [row for row in rows if row.over_seeds("val_accuracy").values]
    best = max(measured, key=lambda row: row.over_seeds("val_accuracy").mean, default=None)
    telling = _most_telling(rows, most)
    left_out = f"and {len(rows) - len(telling)} more" if len(telling) < len(rows) else None
    final_is = f"Final: {FINAL_IS}." if {"test_accuracy", "val_accuracy"} & set(shown) else None
    table = Table(caption="\n".join(filter(None, (left_out, final_is))))
    for key in short_keys(rows[0].point) if rows else ():
        table.add_column(key, overflow="fold")
    for metric in shown:
        table.add_column(_SHOWN[metric], justify="right")
    table.add_column("runs", overflow="fold")
    for row in telling:
        scores = [spread(row.over_seeds(metric), digits=4) for metric in shown]
        runs = progress.get(point_name(row.point), "") or _counts(row)
        table.add_row(*map(Text, row.point.values()), *scores, runs, style="bold" if row is best else None)
    return table


def as_csv(rows: Sequence[Row]) -> str:
    """The rows with every metric: its mean, and its deviation if more than one seed is finished."""
    metrics = list(dict.fromkeys(metric for row in rows for metric in row.values))
    text = StringIO()
    keys = list(rows[0].point) if rows else []
    names = [name for metric in metrics for name in (metric, f"{metric}_sd")]
    writer = csv.writer(text)
    writer.writerow([*keys, *_ORDER, *names, "errors"])
    for row in rows:
        numbers = [number for metric in metrics for number in mean_and_sd(metric, row.over_seeds(metric)).values()]
        scores = ["" if math.isnan(number) else number for number in numbers]
        errors = "; ".join(f"seed {seed}: {error}" for seed, error in row.errors.items())
        writer.writerow([*row.point.values(), *row.counts.values(), *scores, errors])
    return text.getvalue()


def totals(rows: Iterable[Row]) -> str:
    """Numbers of runs by state, such as ``12 done, 1 failed``."""
    total = Row({})
    for row in rows:
        for stands, count in row.counts.items():
            total.counts[stands] += count
    return _counts(total)


def _counts(row: Row) -> str:
    return ", ".join(f"{count} {stands}" for stands, count in row.counts.items() if count) or "no runs"


def _most_telling(rows: Sequence[Row], most: int | None) -> list[Row]:
    if most is None or len(rows) <= most:
        return list(rows)
    begun = [row for row in rows if row.counts["waiting"] < sum(row.counts.values())]
    running = [row for row in begun if row.counts["running"]]
    kept = (running + [row for row in reversed(begun) if not row.counts["running"]])[:most]
    return [row for row in rows if any(row is one for one in kept)]
