"""The report's figures, drawn without any global state of matplotlib but its settings.

Text and axes are in ``INK`` and the paper in ``PAPER``, so that the page can replace both, light or dark.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fl_lightning.callbacks.figures import TEN_COLORS, heatmap, height_of, in_legend, legend_below, panels, width_of, wrapped
from fl_lightning.report.costs import model_megabytes
from fl_lightning.report.groups import RATE, Group
from fl_lightning.report.log import thinned
from fl_lightning.report.measured_rounds import class_curves
from fl_lightning.report.safe_text import one_line
from fl_lightning.report.study import Spread, Study

INK, PAPER = "#010101", "#fefefe"
_MARKERS, _LINES = "osD^v<>PX*", ("-", "--", ":", "-.")  # of lines of one colour
_MIXED_WITH = (("white", 0.0), ("white", 0.5), ("black", 0.5))  # for the first ten methods, the next ten and the rest
_MOST_POINTS = 400  # of a drawn curve: more cannot be seen
_MOST_COLUMNS = 100  # of a heatmap over rounds
_FEW_POINTS = 20  # of a curve, which are marked: between distant ones a line shows nothing measured
_MOST_PANELS = 6  # conditions in one figure
_SHAPE, _AROUND = 0.55, 0.5  # height of a panel with curves: a part of its width, and inches for its title and axis


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure with its file name, its title and its caption."""

    name: str
    title: str
    caption: str
    figure: Figure


@contextmanager
def drawing_style(width: float) -> Iterator[None]:
    """Fonts, lines and colours of figures for a paper of a width in inches, in which their text is 7 points or larger."""
    style = matplotlib.rc_params_from_file(Path(__file__).with_name("report.mplstyle"), use_default_template=False)
    with matplotlib.rc_context({**style, "figure.figsize": (width, _SHAPE * width)}):
        yield


class Palette:
    """A colour for each method, the same in every figure and under every condition."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._methods: list[str] = []
        for group in groups:
            self[group]

    def __getitem__(self, group: Group) -> str:
        if group.named not in self._methods:
            self._methods.append(group.named)
        tens, one = divmod(self._methods.index(group.named), len(TEN_COLORS))
        other, share = _MIXED_WITH[min(tens, len(_MIXED_WITH) - 1)]
        return to_hex(tuple(np.average([to_rgb(TEN_COLORS[one]), to_rgb(other)], axis=0, weights=[1 - share, share])))


def by_condition(
    shown: dict[str, list[Group]], draw: Callable[[Axes, Group], None], xlabel: str, ylabel: str, *, zero_line: bool = False
) -> Figure:
    """A panel for each condition, in which ``draw`` draws every group; one legend below."""
    figure, grid = _grid(min(len(shown), _MOST_PANELS))
    width = width_of(grid[0])
    for axes, (condition, groups) in zip(grid, shown.items(), strict=False):
        if zero_line:
            axes.axhline(0, color=INK, linewidth=0.6)
        for group in groups:
            draw(axes, group)
        axes.set(title=wrapped(condition, width), xlabel=xlabel)
        if xlabel == "round":
            axes.locator_params("x", integer=True)
    for axes in grid[:: round(figure.get_figwidth() / width)]:  # the left column
        axes.set_ylabel(wrapped(ylabel, _SHAPE * width))
    legend_below(figure, grid)
    return figure


def panels_note(shown: dict[str, list[Group]]) -> str:
    """What a figure by condition leaves out, and how many runs are behind it."""
    left_out = f" The first {_MOST_PANELS} of {len(shown)} conditions." if len(shown) > _MOST_PANELS else ""
    return runs_behind("line", [group for some in list(shown.values())[:_MOST_PANELS] for group in some]) + left_out


def runs_behind(what: str, groups: Iterable[Group]) -> str:
    """How many runs each line or point is a mean of."""
    counts = sorted({len(group.runs) for group in groups})
    return f"Runs behind each {what}: {counts[0]}" + (f" to {counts[-1]}." if len(counts) > 1 else ".")


def draw_band(axes: Axes, at: NDArray, values: NDArray, color: str, label: str, *, dashed: bool = False) -> None:
    """The mean of values (curves, n) at positions (n,) and, of several curves, a band of one standard deviation."""
    chosen = thinned(len(at), _MOST_POINTS)
    at, values = at[chosen], values[:, chosen]
    mean = values.mean(axis=0)
    marker = "." if len(at) <= _FEW_POINTS else None
    axes.plot(at, mean, color=color, label=in_legend(label), marker=marker, linestyle="--" if dashed else "-")
    if len(values) > 1 and len(at):
        deviation = values.std(axis=0, ddof=1)
        low, high = mean - deviation, mean + deviation
        if values.min() >= 0 and values.max() <= 1:  # accuracies: a band beyond 0 and 1 has no meaning
            low, high = low.clip(min=0), high.clip(max=1)
        axes.fill_between(at, low, high, color=color, alpha=0.15, linewidth=0)


def draw_distribution(axes: Axes, values: NDArray, counts: NDArray, color: str, label: str) -> None:
    """Cumulative share of values (n,), each with its count (n,)."""
    order = np.argsort(values)
    shares = np.cumsum(counts[order]) / counts.sum()
    values = values[order]
    chosen = thinned(len(values), _MOST_POINTS)
    axes.step(values[chosen], shares[chosen], where="post", color=color, label=in_legend(label))


def draw_ablation(study: Study, key: str, name: str, families: Sequence[Sequence[Group]], palette: Palette) -> Figure:
    """Final accuracy against the values of one key, a line for each family; bars are the deviation over seeds."""
    figure, (axes,) = _grid(1)
    drawn: Counter[str] = Counter()  # lines of a colour
    for family in families:
        color = palette[family[0]]
        marker, line = _MARKERS[drawn[color] % len(_MARKERS)], _LINES[drawn[color] % len(_LINES)]
        drawn[color] += 1
        values = [float(group.config[key]) for group in family]
        scores = [study.final_of(group) for group in family]
        bars = [np.nan_to_num(score.deviation) for score in scores]
        style = {"marker": marker, "linestyle": line, "capsize": 2, "color": color}
        label = in_legend(family[0].label_without(key, RATE))
        axes.errorbar(values, [score.mean for score in scores], bars, label=label, **style)
    ticks = sorted({float(group.config[key]) for family in families for group in family})
    if ticks[0] > 0 and ticks[-1] > 5 * ticks[0]:
        axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    axes.minorticks_off()
    axes.set(xlabel=name, ylabel=f"final {study.metric_name}")
    legend_below(figure, [axes])
    return figure


def draw_sizes(study: Study, groups: Sequence[Group], palette: Palette) -> Figure:
    """Final accuracy against the size of the model."""
    figure, (axes,) = _grid(1)
    for group in groups:
        size, score = Spread(tuple(map(model_megabytes, group.runs))), study.final_of(group)
        bar = np.nan_to_num(score.deviation)
        axes.errorbar([size.mean], [score.mean], [bar], fmt="o", capsize=2, color=palette[group], label=in_legend(group.label))
    axes.set(xlabel="model, MB", ylabel=f"final {study.metric_name}")
    legend_below(figure, [axes])
    return figure


def draw_classes(groups: Sequence[Group], classes: Sequence[str]) -> Figure:
    """A class-by-round heatmap for each group, mean over seeds (Flashback, Figure 5)."""
    figure, grid = panels(len(groups), height_of(len(classes)))
    for axes, group in zip(grid, groups, strict=True):
        curves = [class_curves(run.log, classes) for run in group.runs]
        rounds = reduce(np.intersect1d, [evaluated for evaluated, _ in curves])
        rounds = rounds[thinned(len(rounds), _MOST_COLUMNS)]
        values = np.mean([of[:, np.searchsorted(evaluated, rounds)] for evaluated, of in curves], axis=0)
        names, at = list(map(one_line, classes)), [str(round) for round in rounds]
        heatmap(axes, torch.from_numpy(values), names, at, title=group.label, row_title="class", column_title="round")
    return figure


def _grid(count: int) -> tuple[Figure, list[Axes]]:
    """Panels with the same axes for curves."""
    figure, grid = panels(count, 1, sharex=True, sharey=True)
    width = width_of(grid[0])
    figure.set_figheight(figure.get_figheight() * (_SHAPE * width + _AROUND))  # of one inch for each row
    for axes in grid:
        axes.tick_params(labelbottom=True)  # which sharing leaves to the lowest row
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    return figure, grid
