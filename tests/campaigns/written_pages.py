"""Pages and tables of docs that tests write: compared, or written anew with WRITE_PAGES=1."""

import inspect
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from fl_lightning import methods

DOCS = Path(__file__).parents[2] / "docs"


def hold_page(name: str, text: str) -> None:
    """Fail unless a page of docs is this text; with WRITE_PAGES=1 in the environment write it first."""
    page = DOCS / name
    if os.environ.get("WRITE_PAGES"):
        page.write_text(text)
    assert page.read_text() == text, f"docs/{name} is not what the code says: run this test with WRITE_PAGES=1"


def hold_table(name: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """The same of the one table of a page that has this head."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    table = "".join(re.sub(" +", " ", f"| {' | '.join(line)} |\n") for line in lines)
    text = (DOCS / name).read_text()
    first = table.partition("\n")[0]
    (old,) = re.findall(rf"^{re.escape(first)}\n(?:\|.*\n)*", text, re.MULTILINE)
    hold_page(name, text.replace(old, table))


def round_of(name: str) -> dict[str, str]:
    """The section Round of a method's docstring: what clients and server do, what is sent next to the model, what is kept."""
    _, _, section = (inspect.getdoc(getattr(methods, name)) or "").partition("\nRound:\n")
    return dict(re.findall(r"^    ([a-z ]+): (.*)$", section.partition("\n\n")[0].replace("``", "`"), re.MULTILINE))
