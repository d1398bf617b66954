"""What pages name of the checkout: scripts and studies."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [*(page for page in ROOT.glob("*.md") if page.name != "CHANGELOG.md"), *(ROOT / "docs").rglob("*.md")]


def test_documented_scripts_exist():
    scripts = {name for page in PAGES for name in re.findall(r"python (\S+\.py)", page.read_text()) if "/" in name}
    assert "docs/site/partition_figures.py" in scripts
    assert all((ROOT / name).is_file() for name in scripts), scripts


def test_documented_studies_exist(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from studies.catalogue import STUDIES

    named = {name for page in PAGES for name in re.findall(r"python -m studies (\w+) OUT", page.read_text())}
    assert len(named) > 5
    assert named - {"NAME", "next"} <= STUDIES.keys()
