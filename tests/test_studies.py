"""The studies of the pages of docs/results: one command each."""

import importlib
import re
import sys
from pathlib import Path

import pytest

from fl_lightning.command_line.bundled_configs import bundled_configs

ROOT = Path(__file__).parent.parent


@pytest.fixture
def studies(monkeypatch):
    """The script that runs them, imported as python does that is started with it."""
    monkeypatch.syspath_prepend(ROOT / "studies")
    before = set(sys.modules)
    yield importlib.import_module("run")
    for name in {path.stem for path in (ROOT / "studies").glob("*.py")} & sys.modules.keys() - before:
        del sys.modules[name]


def test_studies_run_bundled_configs(studies):
    for study in studies.STUDIES.values():
        assert {f"{config}.yaml" for config in study.configs} <= set(bundled_configs())
        assert set(study.options_of) <= set(study.configs)


def test_documented_studies_exist(studies):
    text = "".join(page.read_text() for page in (ROOT / "docs" / "results").glob("*.md"))
    names = set(re.findall(r"python studies/run\.py (\w+) OUT", text)) - {"STUDY"}
    assert names <= set(studies.STUDIES)
    assert len(names) > 5


def test_documented_scripts_exist():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    scripts = {name for page in pages for name in re.findall(r"python (\S+\.py)", page.read_text()) if "/" in name}
    assert "studies/run.py" in scripts
    assert all((ROOT / name).is_file() for name in scripts), scripts


def test_a_study_ends_with_what_came_out(studies, monkeypatch, tmp_path):
    """Every config with every seed, then the table, once."""
    commands, shown = [], []
    monkeypatch.setattr(studies.subprocess, "run", lambda command, check: commands.append(command))
    studies.run(studies.Study({"digits_tce": [0, 1]}, shown.append, rounds=3), tmp_path, ["--data.root", "DIR"])
    assert [command[:6] for command in commands] == [
        ["fl-lightning", "fit", "--config", "digits_tce.yaml", "--seed_everything", seed] for seed in ("0", "1")
    ]
    assert all(command[-2:] == ["--data.root", "DIR"] for command in commands)
    assert shown == [tmp_path]
