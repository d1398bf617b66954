"""The notebooks of docs/notebooks/: the build of the site runs them in full, fails if a cell does, and shows their outputs."""

import json
from pathlib import Path

import pytest

PATHS = sorted((Path(__file__).parent.parent / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_lies_in_the_repository_without_outputs(path):
    for cell in json.loads(path.read_text())["cells"]:
        assert not cell.get("outputs"), cell["source"]
        assert cell.get("execution_count") is None, cell["source"]
