"""Tables for people, JSON for machines."""

import json
import os
import platform
import shlex
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.measurements import Table
from fl_lightning.engines.engine_timing import processors
from fl_lightning.report import tables
from fl_lightning.run.provenance import commit

_PACKAGES = ("fl-lightning", "torch", "lightning", "pfl", "flwr", "ray", "numpy")


def markdown(table: Table) -> str:
    """A table that can be pasted into a Markdown file."""
    columns = list(table.rows[0])
    rows = [[_cell(row[column]) for column in columns] for row in table.rows]
    return "\n".join([f"### {table.title}", "", tables.markdown(columns, rows), "", *table.notes, ""])


def _cell(value: Any) -> str:
    return str(value) if not isinstance(value, float) else f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def circumstances(threads: int) -> dict[str, Any]:
    """Where, when and with what the numbers were taken."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "commit": commit(),
        "processor": processors(),
        "cpu capability": torch.backends.cpu.get_cpu_capability(),  # such as AVX2: the kernels that torch chooses
        "threads": threads,
        "load before": os.getloadavg()[0],
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def write_json(path: Path, about: dict[str, Any], tables: list[Table]) -> None:
    """Everything that was measured, every sample included."""
    path.write_text(json.dumps({**about, "tables": [asdict(table) for table in tables]}) + "\n")
