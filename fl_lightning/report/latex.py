"""Tables for papers: a ``tabular`` in the style of the package booktabs, to be read with ``\\input``."""

from fl_lightning.report.safe_text import latex, one_line
from fl_lightning.report.tables import DASH, Table


def latex_table(table: Table) -> str:
    """The rows of a table as LaTeX, which needs ``\\usepackage{booktabs}`` alone; the note is a comment above.

    The best is bold, the second best underlined, numbers are at the right. Any text is shown as it is.
    """
    rows = [
        [_cell(table, number, column, cell) for column, cell in enumerate(cells)] for number, cells in enumerate(table.rows)
    ]
    lines = [
        f"% {one_line(f'{table.title}. {table.note}').strip()}",
        rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        r"\toprule",
        _row([latex(column) for column in table.columns]),
        r"\midrule",
        *map(_row, rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _cell(table: Table, number: int, column: int, cell: str) -> str:
    text = "--" if cell == DASH else latex(cell)
    if (number, column) in table.bold:
        return rf"\textbf{{\boldmath {text}}}"
    return rf"\underline{{{text}}}" if (number, column) in table.underlined else text


def _row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"
