"""Text of runs, made safe for what it is written into: names, paths and values may hold anything."""

import re

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|&~$])")  # anywhere in a line of Markdown, dollars for GitHub's formulas
_LEADING = re.compile(r"^([#=]|[+-](?=[ -])|\d+(?=[.)](?:\s|$)))")  # what would begin a heading or a list

_LONGEST = 60  # characters of a setting


def one_line(text: str) -> str:
    r"""The text with everything that cannot be printed, line breaks among it, as an escape: ``\n``, ``\x1b``, ``\udcff``."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def markdown(text: str) -> str:
    """What Markdown shows as ``text``, in a paragraph, a heading, a list or a cell of a table."""
    escaped = _SPECIAL.sub(r"\\\1", one_line(text))
    return _LEADING.sub(lambda match: f"{match[1]}\\" if match[1].isdecimal() else f"\\{match[1]}", escaped)


def markdown_code(text: str) -> str:
    """A code span that shows ``text`` (CommonMark 0.31, section 6.1): fenced by more backticks than it holds in a row."""
    text = one_line(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    pad = " " if text[:1] in "` " or text[-1:] in "` " else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def shortened(text: str, longest: int = _LONGEST) -> str:
    """A setting, cut where it is too long to be read."""
    return text if len(text) <= longest else f"{text[:longest]}..."
