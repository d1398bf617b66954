"""``fl-lightning compare FIRST SECOND``: two runs, or two sweeps, with the settings in which they differ."""

import sys
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser
from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

from fl_lightning.command_line.one_line_errors import parse
from fl_lightning.command_line.plain_help import PlainFormatter
from fl_lightning.report.comparison import compare
from fl_lightning.report.runs import read_runs
from fl_lightning.report.safe_text import one_line
from fl_lightning.report.table_files import write_table
from fl_lightning.report.tables import Table

_WIDE = 200  # columns where there is no terminal


def run(arguments: Sequence[str]) -> None:
    """Read two sides, print what sets them apart and what came out, and on standard error what was left out.

    Raises:
        FileNotFoundError: if a folder is missing or holds no run that can be read.
        ValueError: if the sides cannot be compared, one is not given, or ``--out`` is a file.
        OSError: if a file cannot be written.
    """
    options = parse(_parser(), arguments)
    if options.second is None:
        raise ValueError("SECOND is missing: give two folders, as in fl-lightning compare runs/a runs/b")
    out = None if options.out is None else Path(options.out)
    if out is not None and any(folder.exists() and not folder.is_dir() for folder in (out, *out.parents)):
        raise ValueError(f"--out is {out}, which is a file or lies in one: give a folder")
    sides, remarks = [], []
    for folder in (options.first, options.second):
        runs, said = read_runs([Path(folder)])
        sides.append(runs)
        remarks += said
    settings, outcome, said = compare(*sides)
    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)
    if settings.rows:
        console.print(_drawn(settings))
    else:
        console.print("No setting differs.")
    console.print(_drawn(outcome))
    console.print(outcome.note)
    if out is not None:
        for table in (settings, outcome):
            write_table(table, out)
    for remark in (*remarks, *said):
        print(one_line(remark), file=sys.stderr)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="fl-lightning compare",
        description="Two runs, or two sweeps: the settings in which they differ, and what came out on each side.",
        formatter_class=PlainFormatter,
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument("first", metavar="FIRST", nargs="?", type=str, help="a run's folder, or one of many runs, at any depth")
    parser.add_argument("second", metavar="SECOND", nargs="?", type=str, help="what it is compared with")
    parser.add_argument(
        "--out", type=str | None, help="folder of the tables as CSV and LaTeX; by default they are printed alone"
    )
    return parser


def _drawn(table: Table) -> Drawn:
    numbers_from = table.columns.index("first")
    drawn = Drawn(title=table.title, title_justify="left")
    for number, column in enumerate(table.columns):
        drawn.add_column(column, justify="right" if number >= numbers_from else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(one_line(cell)) for cell in row))
    return drawn
