"""The configs that come with the package: a folder a paper or a study, a file a row of one of its tables.

The first two lines of a row's file are comments: ``# TCE paper: authors, title`` and ``# Table 1, CIFAR-10: FedAvg+TCE``. Files
of the folder ``methods`` hold settings of methods, which combine with any row. Bare names are unique.
"""

from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import groupby
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """A row of a paper's table."""

    name: str  # of the config, such as cifar10_tce.yaml
    paper: str  # its short name and title
    table: str  # or figure, and the setting
    text: str  # what the row is, such as the method


def bundled_folder() -> Path:
    """The folder of all configs."""
    return Path(str(resources.files("fl_lightning.configs"))).resolve()


@cache
def bundled_files() -> dict[str, Path]:
    """Every file, rows first, each by its folder and name: bare name -> path."""
    paths = sorted(bundled_folder().glob("*/*.yaml"), key=lambda path: (path.parent.name == "methods", path))
    return {path.name: path for path in paths}


@cache
def bundled_rows() -> dict[str, Row]:
    """Every row: bare name -> row, in the order of folders, tables and names."""
    rows = []
    for _, paths in groupby(bundled_files().values(), lambda path: path.parent):
        rows += sorted((_row(path) for path in paths if path.parent.name != "methods"), key=lambda row: (row.table, row.name))
    return {row.name: row for row in rows}


def describe_configs() -> str:
    """All rows, one a line, below their paper and table."""
    rows = bundled_rows().values()
    width = max(len(row.name) for row in rows)
    lines = []
    for paper, of_paper in groupby(rows, lambda row: row.paper):
        lines += ["", paper]
        for table, of_table in groupby(of_paper, lambda row: row.table):
            lines += [f"  {table}", *(f"    {row.name:{width}}  {row.text}" for row in of_table)]
    return "\n".join(lines[1:])


def _row(path: Path) -> Row:
    """The row that a file's head names."""
    with path.open(encoding="utf-8") as file:
        paper, row = (next(file, "").removeprefix("# ").strip() for _ in range(2))
    table, _, text = row.partition(": ")
    return Row(path.name, paper, table, text)
