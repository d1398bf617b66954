"""``python -m benchmarks --check``: holds speed and memory to limits on any machine, in eight to thirty minutes.

Most limits are ratios of two programs that take turns, so the speed of the machine does not matter. A value above its limit
means that a change has made something slower. RESULTS.md has the targets.
"""

import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from math import nan
from typing import NamedTuple

from benchmarks.measurements import Table, analysis_share, compare, memory_growth, population_growth, start_up, two_processes
from benchmarks.programs import ProgramFailed


class Limit(NamedTuple):
    """The largest allowed value of one cell of a measured table."""

    what: str
    measure: Callable[[Namespace], Table]
    row: str | int
    column: str
    at_most: float


LIMITS = (
    Limit("W1, ours to the plain loop", partial(compare, "W1"), "ours", "to reference", 0.95),
    Limit("W2, ours to the plain loop", partial(compare, "W2"), "ours", "to reference", 0.35),
    Limit("W4, ours to the plain loop", partial(compare, "W4"), "ours", "to reference", 1.0),
    Limit("W1, two processes to one", two_processes, "two processes", "to first", 0.62),
    Limit("a round of 100,000 clients to one of 1,000", population_growth, "W5-100000", "to first", 1.1),
    Limit("a round of 1,000,000 clients to one of 1,000", population_growth, "W5-1000000", "to first", 1.1),
    Limit("W6, what analysis adds", analysis_share, "analysis on", "share", 0.3),
    Limit("growth of memory from round 100 to the last", memory_growth, 1000, "growth", 0.01),
    Limit("--help to the import of Lightning", start_up, "fl-lightning --help", "to first", 1.5),
    Limit("first round of W2 to the import of Lightning", start_up, "first round of W2", "to first", 1.5),
)


def check(options: Namespace) -> tuple[Table, bool]:
    """Every limit with what was measured, and whether all hold; a program that fails does not."""
    options = Namespace(**{**vars(options), "programs": ["ours"], "memory_rounds": 1000})
    tables: dict[object, Table] = {}
    rows = []
    for what, measure, row, column, at_most in LIMITS:
        if measure not in tables:
            tables[measure] = _measured(measure, options)
        found = next((cells[column] for cells in tables[measure].rows if row in cells.values()), nan)
        rows.append({"": what, "measured": found, "at most": at_most, "holds": "yes" if found <= at_most else "no"})
    samples = {table.title: table.samples for table in tables.values()}
    return Table("Limits", rows, [f"{options.threads} threads."], samples), all(cells["holds"] == "yes" for cells in rows)


def _measured(measure: Callable[[Namespace], Table], options: Namespace) -> Table:
    """A table, without rows if a program failed that all others need."""
    try:
        return measure(options)
    except ProgramFailed as failure:
        print(failure, file=sys.stderr)
        return Table("failed", [])
