"""The notebooks of docs/notebooks/ run, each in an empty folder; the site runs them too, and shows their outputs."""

import os
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
PATHS = sorted((DOCS / "notebooks").glob("*.ipynb"))
PICTURES = {"first_steps": 3, "new_method": 0, "runs_as_data_frames": 1}  # who holds what, two heatmaps; curves


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, monkeypatch, tmp_path):
    """With the pictures that its text speaks of."""
    nbformat = pytest.importorskip("nbformat")
    from nbclient import execute

    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")  # for commands in cells
    ended = execute(nbformat.read(path, as_version=4), cwd=tmp_path, timeout=300)
    outputs = [output for cell in ended.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == PICTURES[path.stem]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_lies_in_the_repository_without_outputs(path):
    nbformat = pytest.importorskip("nbformat")
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs"), cell.source
        assert cell.get("execution_count") is None, cell.source
