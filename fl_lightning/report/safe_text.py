"""Text of runs, made safe for what it is written into: names, paths and values may hold anything."""

import re

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|&~$])")  # anywhere in a line of Markdown, dollars for GitHub's formulas
_LEADING = re.compile(r"^([#=]|[+-](?=[ -])|\d+(?=[.)](?:\s|$)))")  # what would begin a heading or a list

_LATEX = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$"},
    **{"[": "{[}", "*": "{*}"},  # which the end of the row before would take for its arguments
}
_MINUS = re.compile(r"(?<![\w.)-])-(?=\d)")  # of a number, not of a range or a name

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


def latex(text: str) -> str:
    r"""What LaTeX shows as ``text``: ``5 \%``, a number's sign as a minus, and what its first font may lack as an escape."""
    known = "".join(char if char in _LATEX or char.isascii() else ascii(char)[1:-1] for char in one_line(text))
    return _MINUS.sub("$-$", "".join(_LATEX.get(char, char) for char in known))


def shortened(text: str, longest: int = _LONGEST) -> str:
    """A setting, cut where it is too long to be read."""
    return text if len(text) <= longest else f"{text[:longest]}..."
