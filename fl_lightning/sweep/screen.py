"""What a sweep shows while it goes on: plain lines, or one live table in a terminal."""

import sys
from collections.abc import Mapping, Sequence
from typing import Self

from rich.console import Console, Group
from rich.live import Live

from fl_lightning.sweep.table import Row, as_table, totals

_FRAME = 6  # lines of the screen that the table's head, foot and the summary take


class Screen:
    """Where a worker says what it does: a line for everything that happens."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing is open."""

    def say(self, line: str) -> None:
        """Something that has happened."""
        print(line, flush=True)

    def show(self, rows: Sequence[Row], progress: Mapping[str, str]) -> None:
        """How the sweep stands, which the lines have said."""


class LiveTable(Screen):
    """A table that changes in place, below the lines on what went wrong."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def say(self, line: str) -> None:
        """Print it above the table if something failed; the table shows all else."""
        if "failed" in line:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, rows: Sequence[Row], progress: Mapping[str, str]) -> None:
        """Draw the table anew, with as many rows as the terminal can show."""
        most = max(self._console.height - _FRAME, 3)
        self._live.update(Group(as_table(rows, progress, most), totals(rows)), refresh=True)


def open_screen() -> Screen:
    """The live table in a terminal, plain lines elsewhere."""
    return LiveTable(Console()) if sys.stdout.isatty() else Screen()
