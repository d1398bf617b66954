"""Tables: what people read, and the numbers behind it for CSV."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from fl_lightning.report.safe_text import shortened
from fl_lightning.report.study import Spread, Study

DASH = "-"
Cells = frozenset[tuple[int, int]]  # row, column


@dataclass(frozen=True)
class Table:
    """Rows of text whose first column is a heading, and records of numbers."""

    name: str  # of the CSV file
    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    records: Sequence[Mapping[str, object]]
    bold: Cells = frozenset()  # the best of its kind
    underlined: Cells = frozenset()  # the second best
    texts: int = 1  # columns from the left that are aligned to the left; the others have numbers


def overview(study: Study) -> Table:
    """What was read: methods, seeds and rounds."""
    rows, records = [], []
    for group in study.groups:
        rounds = [run.log.last_round for run in group.runs]
        ended = "yes" if group.finished else "no"
        span = str(rounds[0]) if len(set(rounds)) == 1 else f"{min(rounds)} to {max(rounds)}"
        rows.append([group.label, str(len(group.runs)), ", ".join(map(str, group.seeds)), span, ended])
        records += [
            {"method": group.label, "seed": run.seed, "rounds": run.log.last_round, "finished": ended, "folder": run.folder}
            for run in group.runs
        ]
    columns = ["method", "runs", "seeds", "rounds", "finished"]
    return Table("runs", "Runs", "", columns, rows, records)


def settings(study: Study) -> list[Table]:
    """All keys in which methods differ, named by the label or not, or that some lack; empty if there is one method."""
    configs = [group.config for group in study.groups]
    keys = [key for key in dict.fromkeys(chain(*configs)) if len({config.get(key) for config in configs}) > 1]
    if not keys:
        return []
    records = [{"method": group.label} | {key: group.config.get(key, "") for key in keys} for group in study.groups]
    rows = [[shortened(str(value)) if value != "" else DASH for value in record.values()] for record in records]
    return [Table("settings", "Settings in which methods differ", "", ["method", *keys], rows, records)]


def best_and_second(conditions: Sequence[str], columns: Mapping[int, Sequence[float]]) -> tuple[Cells, Cells]:
    """Cells, as (row, column), of the highest score of each condition, and those of the next lower one.

    Equal scores are of one rank, and NaN is of none.

    Args:
        conditions: of each row; rows are compared under the same one.
        columns: column -> its score in each row, more is better.
    """
    ranked: list[set[tuple[int, int]]] = [set(), set()]
    for column, scores in columns.items():
        rows = defaultdict(list)
        for row, (condition, score) in enumerate(zip(conditions, scores, strict=True)):
            if score == score:
                rows[condition].append(row)
        for together in rows.values():
            highest = sorted({scores[row] for row in together}, reverse=True)[:2]
            for cells, wanted in zip(ranked, highest, strict=False):
                cells.update((row, column) for row in together if scores[row] == wanted)
    best, second = map(frozenset, ranked)
    return best, second


def spread(values: Spread, digits: int = 3) -> str:
    """``0.812 ± 0.004``; only the mean for one run, a dash for none."""
    if math.isnan(values.mean):
        return DASH
    return f"{values.mean:z.{digits}f}" + (f" ± {values.deviation:.{digits}f}" if len(values.values) > 1 else "")


def not_all(found: int, runs: int) -> str:
    """``- (1 of 3)`` where some runs lack a number, since a mean over the others would flatter; empty where all have it."""
    if found == runs:
        return ""
    return f"{DASH} ({found} of {runs})" if runs > 1 else DASH


def interval(values: Spread) -> str:
    """``0.801 to 0.823``, the 95 % interval of the mean; a dash for a single run."""
    low, high = values.interval
    return DASH if math.isnan(low) else f"{low:z.3f} to {high:z.3f}"


def number(value: float, form: str) -> str:
    """Formatted; a dash for NaN."""
    return DASH if math.isnan(value) else format(value, form)


def compared(differences: Spread, p: float, *, has_interval: bool = False) -> list[str]:
    """Cells of a test: ``+0.012 (3)``, the mean difference and over how many seeds, its interval if it has a column, and p."""
    pairs = f" ({len(differences.values)})" if differences.values else ""
    return [number(differences.mean, "+z.3f") + pairs, *([interval(differences)] if has_interval else []), number(p, ".3g")]


def baseline_note(study: Study, tests: int, what: str = "") -> str:
    """What the cells of tests against the baseline are; ``what`` is compared, such as `` in final accuracy``."""
    corrected = f"corrected for the {tests} tests of this table by Holm's method" if tests > 1 else "the table's only test"
    p = f", and p of Student's paired t test, two-sided, {corrected}" if tests else "; none has a test"
    return (
        f"The baseline is {study.baseline.label}: the mean difference{what} over the seeds that both have, in brackets how "
        f"many those are{p}."
    )


def capitalised(text: str) -> str:
    """The text with its first letter a capital, the others as they are; not for an empty one."""
    return text[0].upper() + text[1:]


def means_and_sds(names: Iterable[str], scores: Iterable[Spread]) -> dict[str, float]:
    """The records of :func:`mean_and_sd` of several spreads, in one."""
    return {key: value for name, score in zip(names, scores, strict=True) for key, value in mean_and_sd(name, score).items()}


def mean_and_sd(name: str, values: Spread) -> dict[str, float]:
    """``<name>_mean`` and ``<name>_sd``, the sample standard deviation, as columns of a CSV file."""
    return {f"{name}_mean": values.mean, f"{name}_sd": values.deviation}


def spread_and_interval(values: Spread, sign: str = "") -> str:
    """``0.812 ± 0.004 (0.801 to 0.823)``: mean, sample standard deviation and 95 % interval; a dash for no run.

    Equal values, such as the bytes of runs with other seeds, are given once.

    Args:
        values: over seeds; accuracies have three decimals, bytes and seconds fewer.
        sign: ``+`` for differences.
    """
    if not values.values:
        return DASH
    largest = max(map(abs, values.values))
    digits = 3 if largest < 10 else 1 if largest < 1000 else 0
    form = f"{sign}z.{digits}f"
    text = format(values.mean, form)
    if len(set(values.values)) == 1:
        return text
    low, high = values.interval
    return f"{text} ± {values.deviation:.{digits}f} ({low:{form}} to {high:{form}})"


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
