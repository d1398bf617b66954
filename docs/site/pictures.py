"""Draws the pictures of a page by the page's Python, so that they show what it says."""

import contextlib
import io
import re
from pathlib import Path

_PAGE = Path(__file__).parent.parent / "how_forgetting_is_measured.md"


def draw(folder: Path) -> str:
    """Run the page's Python in a folder, into which it saves pictures.

    Returns:
        What it prints.
    """
    code = "\n".join(re.findall(r"```python\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL))
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        exec(code, {})
    return printed.getvalue()
