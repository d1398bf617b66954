"""Executes the notebooks of docs/notebooks/, which the repository stores without outputs."""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
EXECUTED = Path(__file__).parent.parent.parent / "build" / "notebooks"


def execute(path: Path) -> Path:
    """Run a notebook in an empty folder and keep it with its outputs in ``build/notebooks/``; returns where.

    Raises:
        nbclient.exceptions.CellExecutionError: if a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # for the commands of cells
    with TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}})
        client.execute(env={**os.environ, "PATH": tools})
    EXECUTED.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, EXECUTED / path.name)
    return EXECUTED / path.name


def executed(path: Path) -> Path:
    """A notebook with the outputs of its last execution, for which it is run only if it has changed since."""
    kept = EXECUTED / path.name
    if kept.is_file() and _sources(kept) == _sources(path):
        return kept
    return execute(path)


def _sources(path: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(path, as_version=4).cells]
