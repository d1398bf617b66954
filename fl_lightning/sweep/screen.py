"""The output of a sweep while it runs: plain lines, or one live table in a terminal."""

import sys
from collections.abc import Mapping, Sequence
from typing import Self

from rich.console import Console, Group
from rich.live import Live

from fl_lightning.sweep.table import Row, as_table, totals

_FRAME = 6  # lines of the screen for the table's head and foot and the summary


class Screen:
    """Output of a worker: a line for each event."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing to close."""

    def say(self, line: str) -> None:
        """Print an event."""
        print(line, flush=True)

    def show(self, rows: Sequence[Row], progress: Mapping[str, str]) -> None:
        """Show the state of the sweep; the lines have done so."""


class LiveTable(Screen):
    """A table that changes in place, below the lines about errors."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def say(self, line: str) -> None:
        """Print a failure above the table, which shows all other events."""
        if "failed" in line:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, rows: Sequence[Row], progress: Mapping[str, str]) -> None:
        """Draw the table again, with as many rows as the terminal can show."""
        most = max(self._console.height - _FRAME, 3)
        self._live.update(Group(as_table(rows, progress, most), totals(rows)), refresh=True)


def open_screen() -> Screen:
    """The live table in a terminal, plain lines elsewhere."""
    return LiveTable(Console()) if sys.stdout.isatty() else Screen()
