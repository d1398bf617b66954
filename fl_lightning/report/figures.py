"""The report's figures, drawn without any global state of matplotlib but its settings.

Text and axes are in ``INK`` and the paper in ``PAPER``, so that the page can replace both, light or dark.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fl_lightning.callbacks.figures import TEN_COLORS, accuracy_heatmaps, heatmap
from fl_lightning.report.costs import model_megabytes
from fl_lightning.report.groups import RATE, Group
from fl_lightning.report.log import Curve, thinned
from fl_lightning.report.measured_rounds import class_labels
from fl_lightning.report.safe_text import one_line
from fl_lightning.report.study import Spread, Study, common_curve

INK, PAPER = "#010101", "#fefefe"
_STYLES = (("o", "-"), ("s", "--"), ("D", ":"), ("^", "-."))  # of lines of one colour
_MOST_POINTS = 400  # of a drawn curve: more cannot be seen
_MOST_COLUMNS = 100  # of a heatmap over rounds
_MOST_TICKS = 8
_MOST_PANELS = 6  # conditions in one figure
_PANEL = (5.6, 3.4)  # inches


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure, how it is called in files, and what to say of it."""

    name: str
    title: str
    caption: str
    figure: Figure
    wide: bool = False  # too detailed for a phone: there it scrolls


@contextmanager
def drawing_style() -> Iterator[None]:
    """Colours and lines of all figures of a report."""
    with matplotlib.rc_context(fname=Path(__file__).with_name("report.mplstyle")):
        yield


class Palette:
    """A colour for each method, the same in every figure and under every condition."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._methods: list[str] = []
        for group in groups:
            self[group]

    def __getitem__(self, group: Group) -> str:
        method = group.label_without(RATE, *group.conditions)
        if method not in self._methods:
            self._methods.append(method)
        return TEN_COLORS[self._methods.index(method) % len(TEN_COLORS)]


def by_condition(shown: dict[str, list[Group]], draw: Callable[[Axes, Group], None], xlabel: str, ylabel: str) -> Figure:
    """A panel for each condition, in which ``draw`` draws every group; one legend below."""
    figure, panels = _grid(min(len(shown), _MOST_PANELS))
    for axes, (condition, groups) in zip(panels, shown.items(), strict=False):
        for group in groups:
            draw(axes, group)
        axes.set(title=condition, xlabel=xlabel)
    for axes in panels[::2]:  # the left column
        axes.set_ylabel(ylabel)
    _legend(figure, panels)
    return figure


def panels_note(shown: dict[str, list[Group]]) -> str:
    """What a figure by condition leaves out, and how many runs are behind it."""
    groups = [group for some in list(shown.values())[:_MOST_PANELS] for group in some]
    counts = sorted({len(group.runs) for group in groups})
    runs = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    left_out = f" The first {_MOST_PANELS} of {len(shown)} conditions." if len(shown) > _MOST_PANELS else ""
    return f"Runs behind each line: {runs}.{left_out}"


def draw_spread(axes: Axes, curves: Sequence[Curve], color: str, label: str, *, dashed: bool = False) -> None:
    """The mean over seeds in the rounds that all have; a band of one standard deviation where there are several."""
    rounds, values = common_curve(curves)
    draw_band(axes, rounds, values, color, label, dashed=dashed)


def draw_band(axes: Axes, at: NDArray, values: NDArray, color: str, label: str, *, dashed: bool = False) -> None:
    """The mean of values (curves, n) at positions (n,) and, of several curves, a band of one standard deviation."""
    chosen = thinned(len(at), _MOST_POINTS)
    at, values = at[chosen], values[:, chosen]
    mean = values.mean(axis=0)
    axes.plot(at, mean, color=color, label=label, linewidth=1.3, linestyle="--" if dashed else "-")
    if len(values) > 1:
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
    axes.step(values[chosen], shares[chosen], where="post", color=color, label=label, linewidth=1.3)


def draw_ablation(study: Study, key: str, name: str, families: Sequence[Sequence[Group]], palette: Palette) -> Figure:
    """Final accuracy against the values of one key, a line for each family; bars are the deviation over seeds."""
    figure, (axes,) = _grid(1)
    drawn: Counter[str] = Counter()  # lines of a colour
    for family in families:
        color = palette[family[0]]
        marker, line = _STYLES[drawn[color] % len(_STYLES)]
        drawn[color] += 1
        values = [float(group.config[key]) for group in family]
        scores = [study.final_of(group) for group in family]
        bars = [0.0 if np.isnan(score.deviation) else score.deviation for score in scores]
        style = {"marker": marker, "linestyle": line, "markersize": 5, "capsize": 3, "color": color}
        axes.errorbar(values, [score.mean for score in scores], bars, label=family[0].label_without(key, RATE), **style)
    ticks = sorted({float(group.config[key]) for family in families for group in family})
    if ticks[0] > 0 and ticks[-1] > 5 * ticks[0]:
        axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    axes.minorticks_off()
    axes.set(xlabel=name, ylabel=f"final {study.metric_name}")
    _legend(figure, [axes])
    return figure


def draw_sizes(study: Study, groups: Sequence[Group], palette: Palette) -> Figure:
    """Final accuracy against the size of the model."""
    figure, (axes,) = _grid(1)
    for group in groups:
        size, score = Spread(tuple(map(model_megabytes, group.runs))), study.final_of(group)
        bar = 0.0 if np.isnan(score.deviation) else score.deviation
        axes.errorbar([size.mean], [score.mean], [bar], fmt="o", capsize=3, color=palette[group], label=group.label)
    axes.set(xlabel="model, MB", ylabel=f"final {study.metric_name}")
    _legend(figure, [axes])
    return figure


def draw_classes(groups: Sequence[Group], classes: Sequence[str]) -> Figure:
    """A class-by-round heatmap for each group, mean over seeds (Flashback, Figure 5)."""
    figure, panels = _panels(len(groups), 6.5, max(2.0, min(10.0, 0.22 * len(classes))) + 1.0)
    for axes, group in zip(panels, groups, strict=False):
        curves = [[run.log.scalars[f"class_accuracy/{name}"] for name in classes] for run in group.runs]
        rounds, _ = common_curve([curve for of in curves for curve in of])
        rounds = rounds[thinned(len(rounds), _MOST_COLUMNS)]
        values = np.mean([[curve.at(rounds) for curve in of] for of in curves], axis=0)
        names, at = list(map(one_line, classes)), [str(round) for round in rounds]
        title = _wrapped(group.label)
        heatmap(axes, torch.from_numpy(values), names, at, title=title, row_title="", column_title="round")
        ticks = thinned(len(rounds), _MOST_TICKS)
        axes.set_xticks(ticks, rounds[ticks])
    _finish_heatmaps(panels, len(groups))
    return figure


def draw_client_forgetting(groups: Sequence[Group], round: int, tensors: Callable[[Group, str], NDArray]) -> Figure:
    """Accuracies around the local fits and their difference, a row for each group (TCE, Figures 1 and 5 to 7)."""
    columns = 1 + max(tensors(group, "clients/accuracy_before").ndim for group in groups)
    figure = Figure(figsize=(4.5 * columns, 4.2 * len(groups)), layout="constrained")
    panels = figure.subplots(len(groups), columns, squeeze=False)
    draw = partial(heatmap, row_title="model of client", column_title="data of client")
    for row, group in zip(panels, groups, strict=True):
        names = [str(int(client)) for client in tensors(group, "clients/cohort")]
        before, after = (torch.from_numpy(tensors(group, f"clients/accuracy_{when}")) for when in ("before", "after"))
        accuracy_heatmaps(row, before, after, names, _wrapped(group.label))
        draw(row[before.ndim], after - before, names, names, title="difference (red is forgetting)", diverging=True)
        for axes in row[before.ndim + 1 :]:
            axes.remove()
    figure.suptitle(f"Round {round}")
    _finish_heatmaps(figure.axes, len(figure.axes))
    return figure


def draw_one_round(groups: Sequence[Group], round: int, tensors: Callable[[Group, str], NDArray]) -> Figure:
    """The global model before, each client, the global model after, by class, side by side (Flashback, Figure 2)."""
    figure, panels = _panels(len(groups), 6.5, 4.6)
    for axes, group in zip(panels, groups, strict=False):
        values = torch.from_numpy(tensors(group, "clients/class_accuracy"))
        classes = class_labels(group.runs[0].log, values.shape[1])
        clients = [f"client {int(client)}" for client in tensors(group, "clients/class_cohort")]
        models = ["global before", *clients, "global after"]
        heatmap(axes, values, models, classes, title=_wrapped(group.label), row_title="", column_title="class")
        for line in (0.5, len(clients) + 0.5):
            axes.axhline(line, color="white", linewidth=2)
    figure.suptitle(f"Round {round}")
    _finish_heatmaps(panels, len(groups))
    return figure


def _grid(count: int) -> tuple[Figure, Sequence[Axes]]:
    figure, panels = _panels(count, *_PANEL, shared=True)
    for axes in panels[count:]:
        axes.set_axis_off()
    for axes in panels[:count]:
        axes.tick_params(labelbottom=True)  # which sharing leaves to the lowest row
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    return figure, panels[:count]


def _panels(count: int, width: float, height: float, shared: bool = False) -> tuple[Figure, list[Axes]]:
    """At least so many, of a size in inches, two in a row; ``shared``: with the same axes."""
    columns = min(2, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, sharex=shared, sharey=shared).flat)


def _legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One below all panels, each label once, and space for it."""
    found = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    columns = 2 if len(found) > 3 and max(map(len, found)) < 35 else 1
    figure.legend(found.values(), found.keys(), loc="outside lower left", ncols=columns, fontsize=9)
    figure.set_figheight(figure.get_figheight() + 0.2 * -(-len(found) // columns) + 0.1)


def _finish_heatmaps(panels: Sequence[Axes], used: int) -> None:
    for axes in panels:
        axes.grid(False)
        for text in axes.texts:  # numbers in cells need no space, and asking each for its size is slow
            text.set_in_layout(False)
    for axes in panels[used:]:
        axes.set_axis_off()


def _wrapped(label: str) -> str:
    """A long label in two lines."""
    if len(label) <= 45:
        return label
    cut = label.rfind(", ", 0, 45)
    return label if cut < 0 else f"{label[: cut + 1]}\n{label[cut + 2 :]}"
