"""Pages, docstrings, comments and strings are plain English: stiff words that always have a better one stay out of them."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Regular expressions, in which a space is any white space, also across lines of a comment; and what to write instead.
WORDS = {
    "shall": "will or must",
    "likewise": "also, or in the same way",
    "in the place of": "instead of",
    "takes? the place of": "replaces",
    "(there|where|here)(of|in|upon|with)": "of it, in it",
    "of (yours|ours)": "your own, our",
    "an own": "its own, or a separate",
    "(?<!there\\s)(is|are|was|were) no (?!better|fewer|less|longer|more|need|one|other|such|worse)\\w+": "is not a",
    "none yet": "not yet known, or no ... yet",
    "nobody": "no client, no process or no one",
    "what (becomes|became) of": "how ... is handled",
    "as (the|its|their|our) [\\w']+( [\\w']+)? (has|have) it": "as in",
    "as ever": "as usual",
    "in small": "a small version of",
    "lies(?! in \\[)|stands(?! for)": "is, or is stored",
    "(lie|stand) (in|at|on|next to|beside|below|above|with|here|there|elsewhere)(?! \\[)": "is in, or is stored in",
    "(says|tells) (where|which|what|how|whether)( \\w+){1,3} (lies?|stands?)": "sets the folder of",
    "wants": "needs or requires",
    "(it|code|command|library|package|program|test)s? knows?|knows? (of|no)": "has, supports, or has no",
    "(command|config|docstring|file|folder|key|log|option|output|page|row|setting|system|table)s? (do(es)? not )?says?": (
        "sets, shows or contains"
    ),
    "alone": "only, or by itself",
    "beside": "next to, or in addition to",
    "(whose|of which) [^.;]{0,120} (whose|of which)": "two sentences",
    "(?-i:Drawn|Given|Held|Kept|Measured|Shown) (is|are)": "a noun and an active verb",
}
_STIFF = re.compile("|".join(rf"(?<![\w-])(?:{word})(?![\w-])".replace(" ", r"[\s#]+") for word in WORDS), re.IGNORECASE)
_CURES = [(re.compile(word.replace(" ", r"[\s#]+"), re.IGNORECASE), cure) for word, cure in WORDS.items()]

# Records of their time: what changed when, the pages that runs write, and claims as they were before their runs.
_RECORDS = re.compile(r"CHANGELOG\.md$|docs/(results|study_digits)/(.*/)?report\.md$|studies/declared/")


def _pages() -> list[Path]:
    """All pages of the tree that are kept up to date."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
    return [page for page in pages if not _RECORDS.match(page.relative_to(ROOT).as_posix())]


@cache
def _rooms() -> dict[str, list[Path]]:
    """Files by room: a page, a folder of the package, a file next to those folders, or a folder next to the package."""
    found: dict[str, list[Path]] = {page.relative_to(ROOT).as_posix(): [page] for page in _pages()}
    for file in (ROOT / "fl_lightning").rglob("*.py"):
        found.setdefault("/".join(file.relative_to(ROOT).parts[:2]), []).append(file)
    for folder in ("callbacks", "studies", "docs/site", "benchmarks"):
        found[folder] = [*(ROOT / folder).rglob("*.py")]
    found["configs"] = [*(ROOT / "configs").rglob("*.yaml")]
    return found


def _prose(name: str, text: str) -> Iterator[tuple[int, str]]:
    """First lines and texts of a page, of a file's docstrings, strings and comments or of a config's comments, without code."""
    if name.endswith(".md"):
        yield 1, _masked(re.sub(r"^( *)(```|~~~)[^`].*?^\1\2|^( *)```\n.*?^\3```", _blank, text, flags=re.M | re.S))
        return
    if name.endswith(".yaml"):
        yield 1, _masked(re.sub(r"^[^#\n]+", _blank, text, flags=re.M))
        return
    lines = text.splitlines(keepends=True)
    read: set[ast.AST] = set()
    for node in ast.walk(ast.parse(text)):  # breadth first: an expression before its string, a string before its parts
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            read.add(node.value)
            docstring = "".join(lines[node.lineno - 1 : node.end_lineno]).replace('"""', "   ")
            yield node.lineno, _masked(re.sub(r"^ *(>>>|\.\.\.) .*", _blank, docstring, flags=re.M))
        elif node not in read and not _RECORDS.match(name) and " " in (string := _string(node)):
            read.update(ast.walk(node))
            yield node.lineno, _masked(string)
    comments: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string
    for line, comment in comments.items():
        if line - 1 not in comments:
            block = [comment]
            while line + len(block) in comments:
                block.append(comments[line + len(block)])
            yield line, _masked("\n".join(block))


def _string(node: ast.AST) -> str:
    """The text of a string or an f-string, such as an error's or an option's; nothing of other code."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_string(part) or "_" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _masked(text: str) -> str:
    return re.sub(r'``.*?``|`[^`]*`|"[^"\n]*"|\]\([^)]*\)', _blank, text, flags=re.S)


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "_", found[0])


def stiff(name: str, text: str) -> list[str]:
    """A line for each stiff word of a file: where it is, and what to write instead."""
    if not _STIFF.search(text):  # most files have none: parsing them all would take seconds
        return []
    found = []
    for first, prose in _prose(name, text):
        for match in _STIFF.finditer(prose):
            cure = next(cure for word, cure in _CURES if word.fullmatch(match[0]))
            line = first + prose.count("\n", 0, match.start())
            found.append(f"{name}:{line}: {' '.join(match[0].split())!r}: write {cure}")
    return found


def _stiff_in(room: str) -> Iterator[str]:
    for file in _rooms()[room]:
        yield from stiff(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8"))


def test_text_is_plain():
    """In all rooms."""
    found = [line for room in _rooms() for line in _stiff_in(room)]
    assert not found, "\n" + "\n".join(found)


PAGE = """Files lie in a folder, and shall stay there.

`shall` is code, "Shall we" a title, and x lies in [0, 1]; there is no file.

```
shall
```

This is no file, but a
config of yours.
"""

CODE = '''"""What the file says."""

shall = "likewise"  # a comment that is written in the
# place of another


def wants(nobody):
    """Likewise.

    Example::

        >>> shall  # wants
    """
    raise ValueError(f"x is {nobody}, which is no {'number'} " "alone: see `shall`")
'''


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.md", PAGE, ["1: 'lie in'", "1: 'shall'", "9: 'is no file'", "10: 'of yours'"]),
        (
            "a.md",
            "It stands for all, on its own, not alone.\nKept are two; the log does not say which, and a test knows it.\n",
            ["1: 'alone'", "2: 'Kept are'", "2: 'log does not say'", "2: 'test knows'"],
        ),
        ("a.yaml", "shall: 1  # as the paper\n# has it\n", ["1: 'as the paper # has it'"]),
        ("a.py", CODE, ["1: 'file says'", "8: 'Likewise'", "14: 'is no _'", "14: 'alone'", "3: 'in the # place of'"]),
    ],
)
def test_stiff_words_are_found(name, text, expected):
    """In text, also across lines; not in code, quotations or intervals."""
    assert [line.removeprefix(f"{name}:").rpartition(": write ")[0] for line in stiff(name, text)] == expected
