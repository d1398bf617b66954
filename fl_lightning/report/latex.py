"""Tables for papers, to be read with ``\\input``: a ``tabular`` in the style of booktabs, whose numbers siunitx aligns."""

import re

from fl_lightning.report.safe_text import latex, one_line
from fl_lightning.report.tables import DASH, Table

_NUMBER = re.compile(r"([+-]?)(0|[1-9]\d*)(?:\.(\d+))?(?: ± (\d+)(?:\.(\d+))?)?")
_SETTINGS = (
    "group-digits=none, retain-explicit-plus, retain-zero-uncertainty, text-series-to-math, uncertainty-mode=separate",
    "table-align-uncertainty=false, table-align-text-after=false",  # a deviation, and the underline, end where the number does
)


def latex_table(table: Table) -> str:
    r"""The rows of a table as LaTeX, which needs the packages booktabs and siunitx (version 3, of 2021, or later).

    Numbers of a column are aligned by their points, and other text is centred; a column without a number is aligned to the
    right, and columns of text to the left. The best is bold, the second best underlined. Any text is shown as it is. The note
    is a comment above.
    """
    columns = [_column(cells) for cells in zip(*(row[1:] for row in table.rows), strict=True)] or ["r"] * len(table.columns[1:])
    columns[: table.texts - 1] = "l" * (table.texts - 1)
    aligned = [False, *("S" in column for column in columns)]
    heads = [_braced(latex(name)) if numbers else latex(name) for name, numbers in zip(table.columns, aligned, strict=True)]
    rows = [
        [_cell(table, number, column, cell, aligned[column]) for column, cell in enumerate(cells)]
        for number, cells in enumerate(table.rows)
    ]
    lines = [
        f"% {one_line(f'{table.title}. {table.note}').strip()}",
        r"\begingroup%",
        *(rf"\sisetup{{{settings}}}%" for settings in _SETTINGS),
        rf"\begin{{tabular}}{{l{''.join(columns)}}}",
        r"\toprule",
        _row(heads),
        r"\midrule",
        *map(_row, rows),
        r"\bottomrule",
        r"\end{tabular}\endgroup",
    ]
    return "\n".join(lines) + "\n"


def _column(cells: tuple[str, ...]) -> str:
    """The type of a column: that of siunitx with space for the longest parts of its numbers, ``r`` without any number."""
    numbers = [match.groups(default="") for cell in cells if (match := _NUMBER.fullmatch(cell))]
    if not numbers:
        return "r"
    signs, wholes, decimals, *deviations = zip(*numbers, strict=True)
    places = max(map(len, decimals))
    # Of a deviation the digits from its first that is not 0, as in 0.812(4).
    digits = [len((whole + part.ljust(places, "0")).lstrip("0")) for whole, part in zip(*deviations, strict=True) if whole]
    form = "-" * any(signs) + str(max(map(len, wholes))) + f".{places}" * (places > 0)
    return f"S[table-format={form}{f'({max(1, *digits)})' if digits else ''}]"


def _cell(table: Table, number: int, column: int, cell: str, aligned: bool) -> str:
    bold, underlined = ((number, column) in marked for marked in (table.bold, table.underlined))
    if aligned and _NUMBER.fullmatch(cell):
        shown = cell.replace("±", r"\pm")
        # siunitx takes no command around a number: the line is drawn back from the number's end.
        line = rf"{{\llap{{\underline{{\phantom{{${shown}$}}}}}}}}" if underlined else ""
        return r"\bfseries " * bold + cell.replace("±", "+-") + line
    text = "--" if cell == DASH else latex(cell)
    text = rf"\textbf{{\boldmath {text}}}" if bold else rf"\underline{{{text}}}" if underlined else text
    return _braced(text) if aligned else text


def _braced(text: str) -> str:
    """What siunitx takes for no number."""
    return f"{{{text}}}"


def _row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"
