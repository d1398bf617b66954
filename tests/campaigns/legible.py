"""Figures with text that can be read in print."""

from itertools import pairwise

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text


def assert_legible(figure: Figure) -> None:
    """Every text is 7 points or larger and within the figure, and no two labels of an axis touch."""
    FigureCanvasAgg(figure).draw()
    assert all(text.get_fontsize() >= 7 for text in figure.findobj(Text) if text.get_text())
    drawn_on = figure.get_tightbbox()
    assert drawn_on.min.min() >= 0
    assert (drawn_on.max <= figure.get_size_inches()).all()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            boxes = [label.get_window_extent() for label in axis.get_ticklabels() if label.get_text()]
            assert not any(one.overlaps(other) for one, other in pairwise(boxes)), axes.get_title()
