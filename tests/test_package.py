"""The package as a wheel installs it, what the package index shows of it, and the source tree next to it."""

import ast
import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import bibtexparser
import pytest
import yaml

import fl_lightning
from fl_lightning import methods

ROOT = Path(__file__).parent.parent
# Found as an import finds them, without the seconds that an import takes.
WHERE = """
from importlib.util import find_spec
print(*(find_spec(name).origin for name in ("fl_lightning.callbacks", "fl_lightning.configs")))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder that holds the package as a wheel does: with callbacks and configs inside it."""
    package = tmp_path_factory.mktemp("site") / "fl_lightning"
    shutil.copytree(ROOT / "fl_lightning", package)
    for name in ("callbacks", "configs"):
        shutil.copytree(ROOT / name, package / name)
    return package.parent


@pytest.mark.parametrize("where", ["root of the tree", "elsewhere"])
def test_callbacks_are_found_next_to_an_installed_wheel(installed, tmp_path, where):
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


def test_a_second_tree_takes_callbacks_from_itself(installed, tmp_path):
    """Where another tree is installed as editable: its finder, which is asked first, has the callbacks of that tree."""
    shutil.copytree(ROOT / "fl_lightning", tmp_path / "fl_lightning")
    for name in ("callbacks", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    other = installed / "fl_lightning" / "callbacks" / "__init__.py"
    program = f"""
import sys
from importlib.util import spec_from_file_location

class Editable:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return spec_from_file_location(name, {str(other)!r}) if name == "fl_lightning.callbacks" else None

sys.meta_path.append(Editable)
{WHERE}"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, env=os.environ
    )
    assert result.stdout.split() == [str(tmp_path / name / "__init__.py") for name in ("callbacks", "configs")], result.stderr


def test_type_checkers_see_every_public_name():
    """The stub gives a checker what the lazy imports give at run time."""
    tree = ast.parse((ROOT / "fl_lightning" / "__init__.pyi").read_text())
    names = {alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names - {"*"} | set(methods.__all__) == set(fl_lightning.__all__)


@pytest.mark.parametrize("name", ["fl_lightning", "benchmarks", "tests"])
def test_the_package_holds_nothing_else_of_the_tree(name):
    """A second copy of a class is not the class."""
    assert importlib.util.find_spec(f"fl_lightning.{name}") is None


@pytest.fixture(scope="module")
def setup() -> dict:
    """The functions of setup.py."""
    return runpy.run_path(str(ROOT / "setup.py"))


def test_every_folder_of_the_package_is_installed(setup, monkeypatch):
    """A folder with code or configs is a package, and nobody lists it by hand."""
    monkeypatch.chdir(ROOT)
    folders = {path.parent for top in ("fl_lightning", "callbacks", "configs") for path in (ROOT / top).rglob("*.[py][ya]*")}
    names = {".".join(folder.relative_to(ROOT).parts) for folder in folders if folder.name != "__pycache__"}
    expected = {name if name.startswith("fl_lightning") else f"fl_lightning.{name}" for name in names}
    found = setup["packages"]()
    assert len(found) == len(set(found))
    assert {package for package in found if not package.endswith("__pycache__")} == expected


def test_the_index_shows_the_readme_with_whole_addresses(setup):
    text = setup["description"]((ROOT / "README.md").read_text(), "https://example.org/a/b", "c0ffee")
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) > 15
    assert all(re.match(r"https?://|#", target) for target in targets)
    picture = "docs/images/forgetting_ce_wsm.png"
    assert f"](https://example.org/a/b/raw/c0ffee/{picture})" in text
    assert "[keys](https://example.org/a/b/blob/c0ffee/docs/keys.md)" in text
    badge = "https://example.org/a/b/raw/c0ffee/docs/images/badge_docs.svg"
    assert f"]({badge})](https://example.org/a/b/blob/c0ffee/docs/start.md)" in text
    kept = "[x](https://example.org) [y](#there) ![z](http://example.org/z.png)"
    assert setup["description"](kept, "https://example.org/a/b", "c0ffee") == kept


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no repository")
def test_no_key_or_certificate_is_tracked():
    """The commands of docs/federations.md write some; one that was committed once would be public for ever."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "README.md" in tracked
    assert [name for name in tracked if name.endswith((".key", ".pem"))] == []


def test_an_index_without_an_address_gets_no_dead_link(setup, capsys):
    """What is lost is in the build's log."""
    text = setup["description"]((ROOT / "README.md").read_text(), "", None)
    pictures, links = map(int, re.findall(r"(\d+) (?:pictures|links)", capsys.readouterr().out))
    assert (pictures, links > 30) == (4, True)
    assert re.findall(r"\]\((?!\w+:|#)", text) == []
    assert "evidence" not in text
    assert "heatmaps" not in text
    assert "Red:" not in text
    assert "\npip install fl-lightning && fl-lightning fit" in text
    assert "Not on PyPI" not in text
    assert "```\n\nIt installs 6.2 GB on Linux" in text
    assert "-e" not in re.findall(r"pip install (\S+)", text)
    assert "## More" not in text
    assert text.count("\n## ") == (ROOT / "README.md").read_text().count("\n## ") - 1
    kept = "[x](https://example.org) [y](#there) ![z](http://example.org/z.png)"
    assert setup["description"](f"![a](b.png)\n\n[![c](d.svg)](e.md)\n{kept} [f](g.md)", "", None) == f"{kept} f"


def test_the_citation_is_of_this_version():
    """In both forms, and of the year of the changelog."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == fl_lightning.__version__
    (entry,) = bibtexparser.bparser.BibTexParser(ignore_nonstandard_types=False).parse((ROOT / "README.md").read_text()).entries
    assert entry["title"] == citation["title"]
    assert entry["note"] == f"Version {citation['version']}"
    changelog = (ROOT / "CHANGELOG.md").read_text()
    (year,) = re.findall(rf"^## {re.escape(fl_lightning.__version__)} \((\d+)-\d\d-\d\d\)$", changelog, re.MULTILINE)
    assert entry["year"] == year
    assert entry["author"] == f"{{{citation['authors'][0]['name']}}}"
    pages = {path.name for path in (ROOT / "docs" / "papers").glob("*.md")}
    notes = " ".join(reference["notes"] for reference in citation["references"])
    assert set(re.findall(r"docs/papers/(\w+\.md)", notes)) == pages


def test_all_extras_are_in_all():
    """But what only developers need, and Flower, which pins many versions."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    apart = ("all", "bench", "docs", "test", "wandb", "mlflow", "flower")  # of trackers a user has one or none
    users = ",".join(name for name in extras if name not in apart)
    assert extras["all"] == [f"fl-lightning[{users}]"]


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_what_a_workflow_runs_is_there(path):
    """Every script, folder and other workflow that a workflow calls is in the tree, and each job of its own has a machine."""
    jobs = yaml.safe_load(path.read_text(encoding="utf-8")).get("jobs", {})
    own = [job for job in jobs.values() if "uses" not in job]
    commands = [step["run"] for job in own for step in job["steps"] if "run" in step]
    called = [job["uses"] for job in jobs.values() if "uses" in job]
    called += [word for command in commands for word in re.findall(r"(?<!\S)(?:\.ci/\w+|docs/\w+)", command)]
    assert [word for word in called if not (ROOT / word).exists()] == []
    assert all("runs-on" in job for job in own)
    if path.parent.name == "workflows":
        assert commands
