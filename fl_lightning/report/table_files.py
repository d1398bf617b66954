"""A table as files: its numbers as CSV, not rounded, and its rows as LaTeX."""

import csv
from pathlib import Path

from fl_lightning.report.latex import latex_table
from fl_lightning.report.safe_text import one_line
from fl_lightning.report.tables import Table
from fl_lightning.state.atomic_files import atomic_write


def write_table(table: Table, folder: Path) -> None:
    """Write ``<name>.csv`` and ``<name>.tex``, each whole or not at all."""
    with atomic_write(folder / f"{table.name}.csv") as path:
        _write_csv(table, path)
    with atomic_write(folder / f"{table.name}.tex") as path:
        path.write_text(latex_table(table), encoding="utf-8")


def _write_csv(table: Table, path: Path) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(table.records[0]) if table.records else list(table.columns))
        writer.writeheader()
        writer.writerows({key: _csv_value(value) for key, value in record.items()} for record in table.records)


def _csv_value(value: object) -> object:
    """An empty cell for NaN; text, a path and a class among it, in one line."""
    return ("" if value != value else value) if isinstance(value, int | float) else one_line(str(value))
