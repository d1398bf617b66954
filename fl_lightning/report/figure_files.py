"""Figures as files at the width of a paper's column."""

from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.figure import Figure
from matplotlib.text import Text

from fl_lightning.atomic_files import atomic_write

Format = Literal["png", "svg", "pdf"]
WIDTHS = {"cvpr": 3.25, "icml": 3.25, "ieee": 3.5, "lncs": 4.8, "neurips": 5.5, "iclr": 5.5}
"""Column widths in inches, by the papers' styles."""
_DPI = 300
_SMALLEST = 4.0  # points of text that can be read in print
# TrueType: publishers refuse the default, Type 3. The salt makes of the same figure the same file.
_SETTINGS: dict[Any, Any] = {"pdf.fonttype": 42, "svg.hashsalt": "fl-lightning"}


def fit_to_width(figure: Figure, width: float) -> None:
    """Give a figure a width in inches; height and text change by the same factor, text no further than to 4 points."""
    factor = width / figure.get_figwidth()
    figure.set_size_inches(width, factor * figure.get_figheight())
    for axes in figure.axes:
        axes.tick_params(labelsize=max(_SMALLEST, 10 * factor))
    for text in figure.findobj(Text):
        text.set_fontsize(max(_SMALLEST, float(text.get_fontsize()) * factor))


def write_figure_file(figure: Figure, path: Path, format: Format) -> None:
    """Write a figure, whole or not at all.

    Raises:
        OSError: naming the file, if it cannot be written.
    """
    undated = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[format]
    with atomic_write(path) as temporary, matplotlib.rc_context(_SETTINGS):
        figure.savefig(temporary, format=format, dpi=_DPI, metadata=undated, facecolor="white")
