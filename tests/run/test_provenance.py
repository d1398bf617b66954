"""Runs name the version and the commit of the package."""

import json
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

import fl_lightning
from fl_lightning.run import provenance

COMMIT = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-q", "-a", "-m", "x"]


@pytest.fixture
def package(tmp_path) -> Path:
    """A folder with a copy of provenance.py, in a folder without a checkout."""
    folder = tmp_path / "tree" / "fl_lightning"
    (folder / "run").mkdir(parents=True)
    shutil.copy(provenance.__file__, folder / "run")
    return folder


def commit_of(package: Path) -> str | None:
    return runpy.run_path(str(package / "run" / "provenance.py"))["commit"]()


def test_a_checkout_names_its_commit_and_whether_code_differs(package):
    tree = package.parent
    (package / "commit.txt").write_text("of an earlier build\n")
    for command in (["git", "init", "-q"], ["git", "add", "fl_lightning/run/provenance.py"], COMMIT):
        subprocess.run(command, cwd=tree, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tree, check=True, capture_output=True, text=True).stdout.strip()
    assert commit_of(package) == head
    (tree / "results.csv").write_text("of a study\n")
    subprocess.run(["git", "add", "results.csv"], cwd=tree, check=True)
    assert commit_of(package) == head
    with (package / "run" / "provenance.py").open("a") as file:
        file.write("# changed\n")
    assert commit_of(package) == f"{head}-dirty"


def test_an_installed_package_names_what_its_build_recorded(package):
    assert commit_of(package) is None
    (package / "commit.txt").write_text("c0ffee\n")
    assert commit_of(package) == "c0ffee"


def test_a_run_names_version_and_commit(main):
    code, _, error = main("fit", "--config", "digits_tce.yaml", "--trainer.max_steps", "1")
    assert code == 0, error
    folder = Path("runs/digits_tce/version_0")
    results = json.loads((folder / "results.json").read_text())
    assert (results["version"], results["commit"]) == (fl_lightning.__version__, provenance.commit())
    first = (folder / "config.yaml").read_text().partition("\n")[0]
    assert first == f"# fl-lightning {fl_lightning.__version__}, commit {provenance.commit() or 'unknown'}"
