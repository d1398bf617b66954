"""The results files of docs/forgetbench and the table of the page."""

import re

from written_pages import DOCS, hold_page

from fl_lightning.bench.results_file import read_cell
from fl_lightning.bench.table import NOTE, table

FILES = sorted((DOCS / "forgetbench").glob("*.json"))


def test_the_table_is_that_of_the_results_files():
    """Every number of it comes from files that agree with their digests."""
    text = (DOCS / "forgetbench.md").read_text()
    held = re.compile(rf"(?<=prints this table:\n\n).*?{re.escape(NOTE)}", re.DOTALL)
    assert held.search(text)
    hold_page("forgetbench.md", held.sub(lambda _: table([read_cell(path) for path in FILES]), text))


def test_six_settings_have_run_in_full():
    """Of methods and losses on digits, each with all seeds, from one clean commit."""
    cells = [cell for cell in map(read_cell, FILES) if cell.federation == "digits" and len(cell.runs) == 5]
    assert len({cell.label for cell in cells}) >= 6
    assert {cell.commit for cell in cells} == {cells[0].commit}
    assert re.fullmatch(r"[0-9a-f]{40}", cells[0].commit)
