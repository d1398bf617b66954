"""The package as a wheel installs it, and the source tree next to it."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WHERE = "import fl_lightning.callbacks, fl_lightning.configs as c; print(fl_lightning.callbacks.__file__, c.__file__)"


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder that holds the package as a wheel does: with callbacks and configs inside it."""
    package = tmp_path_factory.mktemp("site") / "fl_lightning"
    shutil.copytree(ROOT / "fl_lightning", package)
    for name in ("callbacks", "configs"):
        shutil.copytree(ROOT / name, package / name)
    return package.parent


@pytest.mark.parametrize("where", ["root of the tree", "elsewhere"])
def test_callbacks_are_found_beside_an_installed_wheel(installed, tmp_path, where):
    """A python in the root of the tree takes all of the package from the tree, one elsewhere all of it from the wheel."""
    folder, expected = (ROOT, ROOT) if where == "root of the tree" else (tmp_path, installed / "fl_lightning")
    # -S and a path of folders: so an editable install, which finds callbacks wherever it is started, plays no part.
    path = os.pathsep.join([str(installed), *(part for part in sys.path if part)])
    result = subprocess.run(
        [sys.executable, "-S", "-c", WHERE],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [str(expected / name / "__init__.py") for name in ("callbacks", "configs")]


@pytest.mark.parametrize("name", ["fl_lightning", "benchmarks", "tests"])
def test_the_package_holds_nothing_else_of_the_tree(name):
    """A second copy of a class is not the class."""
    assert importlib.util.find_spec(f"fl_lightning.{name}") is None
