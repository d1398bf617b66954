"""The configs that come with the package: a folder a paper, a row of its tables a config, and pieces to combine.

A folder with a ``rows.yaml`` is that of a paper or of a study: its title and the rows of its tables. A row is a combination of
other configs and of values under their keys of the command line; a row without a ``base`` is the folder's file of its name. All
other folders hold pieces: ``methods``, ``data``, a paper's ``settings``. A config is found by its bare name, which is unique.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any

from fl_lightning.state.strict_yaml import load_yaml

_ROWS = "rows.yaml"


@dataclass(frozen=True)
class Row:
    """A row of a paper's table.

    Args:
        name: of the config, such as ``cifar10_tce.yaml``.
        paper: the paper's short name and title.
        table: its table or figure, and the setting.
        text: what the row is, such as the method.
        base: the configs that it is a combination of; empty for a file.
        values: what it sets itself, under keys of the command line such as ``model.optimizer.lr``.
    """

    name: str
    paper: str
    table: str
    text: str
    base: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)


def bundled_folder() -> Path:
    """The folder of all configs."""
    return Path(str(resources.files("fl_lightning.configs")))


@cache
def bundled_files() -> dict[str, Path]:
    """Every file, pieces included: bare name -> path."""
    return {path.name: path for path in bundled_folder().rglob("*.yaml") if path.name != _ROWS}


@cache
def bundled_rows() -> dict[str, Row]:
    """Every row: bare name -> row, in the order of papers, tables and names."""
    rows = [row for path in sorted(bundled_folder().glob(f"*/{_ROWS}")) for row in _rows(path)]
    return {row.name: row for row in rows}


def bundled_configs() -> list[str]:
    """Names of the rows."""
    return sorted(bundled_rows())


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


def _rows(path: Path) -> list[Row]:
    """All rows of the folder in which a ``rows.yaml`` lies."""
    content = load_yaml(path.read_text(encoding="utf-8"))
    return sorted(_of_tables(content), key=lambda row: (row.table, row.name))


def _of_tables(content: dict[str, Any]) -> Iterator[Row]:
    paper = f"{content['name']}: {content['title']}"
    for table, rows in content["tables"].items():
        for name, row in rows.items():
            values = {key: value for key, value in row.items() if key not in ("row", "base")}
            yield Row(name, paper, table, row["row"], tuple(row.get("base", ())), values)
