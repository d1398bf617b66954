"""Formulas of docstrings, which are plain text there, as TeX."""

import re

_GREEK = "alpha beta gamma delta eta theta lambda mu nu sigma tau omega Delta Omega phi psi".split()
_FUNCTIONS = "log exp min max cos".split()
_NAMED = "logsumexp softmax sigmoid argmin mean KL Dir Acc".split()
_SIGNS = {"||": r"\Vert", "|": r"\vert", "<=": r"\le", ">=": r"\ge", "~": r"\sim", "*": r"\,", "^{*}": r"^{\ast}"}
# What a formula has; and what only code has: quotes, attributes, names of several words, arguments by name, empty calls.
_OF_A_FORMULA = re.compile(r"\|\||[_^]\{|\b(?:sum|min|max|logsumexp)_|\blogsumexp|\^|\blog \w|\bKL\(|\bexp\(|\w_\w+ [=<(-]")
_CODE = re.compile(r"[\"'`\\@#]|\w\.\w*[a-z]|__|==|\w_\w*_|[a-z]{3,}_[a-z]{3,}|\w=\w|[a-z]\(\)")
_WORDS = "(?:of|at|the|batch)(?: [a-z]{2,})+"
_TOKEN = re.compile(rf"<([^<>]*,[^<>]*)>|{_WORDS}|[A-Za-z]+|\d*\.?\d+(?:e-?\d+)?|\|\||<=|>=|\^{{\*}}|.")
_LITERAL = re.compile(r"``(?!`)(.+?)``(?!`)", re.DOTALL)


def with_formulas(text: str, shown: str = ":math:`{}`") -> str:
    """Text of a docstring, in which literals that are formulas are replaced.

    Args:
        shown: how the page's markup writes a formula, with ``{}`` for it.
    """

    def one(literal: re.Match[str]) -> str:
        plain = " ".join(literal[1].split())
        return shown.replace("{}", tex(plain)) if is_formula(plain) else literal[0]

    return _LITERAL.sub(one, text)


def is_formula(text: str) -> bool:
    """Whether a literal of a docstring is a formula, not code."""
    return bool(_OF_A_FORMULA.search(text)) and not _CODE.search(text)


def tex(formula: str) -> str:
    """A formula in plain text as TeX."""
    text = re.sub(r"(?<=\w)\*", "^{*}", formula)
    text = re.sub(r"(?<=beta)(\d)", r"_\1", text)
    text = re.sub(r"([_^])([A-Za-z]\w*|\.?\d+)", r"\1{\2}", text)  # a subscript may have several letters
    text = re.sub(r"([_^])\(([^()]*)\)", r"\1{\2}", text)
    return " ".join(filter(None, map(_token, _TOKEN.finditer(text))))


def _token(found: re.Match[str]) -> str:
    word = found[0]
    if found[1] is not None:
        return rf"\langle {tex(found[1])} \rangle"
    if word == "sum" or word in _GREEK or word in _FUNCTIONS:
        return rf"\{word}"
    if word in _NAMED:
        return rf"\operatorname{{{word}}}"
    if word == "eps":
        return r"\varepsilon"
    if word == "in":
        return r"\in"
    if " " in word.strip():
        return rf"\text{{ {word} }}"
    if word.isalpha() and len(word) > 2:
        return rf"\mathrm{{{word}}}"
    return _SIGNS.get(word, word.strip())
