"""Markdown of the pages that are written from the code: tables, and the text of docstrings."""

import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any

from docstring_parser import parse

from formulas import with_formulas


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar within a cell is shown as it is."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def restructured(text: str) -> str:
    """Text of a docstring, in the markup of docstrings."""
    return f"````{{eval-rst}}\n{with_formulas(text)}\n````\n"


def first_sentence(documented: Any) -> str:
    """The first sentence of a docstring, for a table: ``code`` and names of classes as code."""
    text = " ".join((inspect.getdoc(documented) or "").split("\n\n")[0].split())
    return as_markdown(re.split(r"(?<=\.)\s+(?=[A-Z])", text)[0])


def as_markdown(text: str) -> str:
    """A line of a docstring in Markdown."""
    text = with_formulas(text, "${}$")
    return re.sub(r"``(.+?)``", r"`\1`", re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text))


def described_arguments(documented: type) -> dict[str, str]:
    """What the docstrings of a class and of its bases say of the arguments, by name, in Markdown."""
    described = [one for base in reversed(documented.__mro__) for one in parse(base.__doc__ or "").params]
    return {one.arg_name: as_markdown(" ".join((one.description or "").split())) for one in described}
