"""The pictures: heatmaps and bars, drawn without any global state of matplotlib."""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

_CELLS_WITH_NUMBERS = 400  # above this many cells, numbers in them could not be read


def heatmap(
    axes: Axes,
    values: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str,
    row_title: str,
    column_title: str,
    diverging: bool = False,
) -> None:
    """Draw values (rows, columns) on ``axes``: accuracies in [0, 1], or differences in [-1, 1] with 0 white.

    NaN is left grey. Long axes show some of their labels.
    """
    matrix = values.detach().cpu().double().numpy()
    colors, low = ("RdBu", -1.0) if diverging else ("viridis", 0.0)
    axes.set_facecolor("0.85")
    image = axes.imshow(matrix, cmap=colors, vmin=low, vmax=1.0, aspect="auto", interpolation="nearest")
    axes.set_title(title)
    axes.set_xlabel(column_title)
    axes.set_ylabel(row_title)
    _label(axes.xaxis, columns, rotate=max(map(len, columns), default=0) > 3)
    _label(axes.yaxis, rows, rotate=False)
    if matrix.size <= _CELLS_WITH_NUMBERS and len(columns) <= 20:
        for (row, column), value in np.ndenumerate(matrix):
            if np.isfinite(value):
                dark = abs(value) > 0.6 if diverging else value < 0.5
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=6, color="white" if dark else "black")
    axes.figure.colorbar(image, ax=axes, fraction=0.046, pad=0.04)


def three_panels(before: Tensor, after: Tensor, difference: Tensor, mean: Tensor, clients: Sequence[int], round: int) -> Figure:
    """Accuracies before and after the local fits and their difference with its mean column (Legate et al., Figures 1, 5-7).

    Args:
        before, after, difference: (K, K), row i the model of client i, column k the data of client k.
        mean: (K,) mean of each row of ``difference`` without the diagonal.
        clients: indices of the K clients.
        round: for the title.
    """
    names = [str(client) for client in clients]
    figure = Figure(figsize=(18, 5.5), layout="constrained")
    panels = figure.subplots(1, 3)
    shared = {"row_title": "model of client", "column_title": "data of client"}
    heatmap(panels[0], before, names, names, title="accuracy before the local fit", **shared)
    heatmap(panels[1], after, names, names, title="accuracy after the local fit", **shared)
    with_mean = np.concatenate([difference.cpu().double().numpy(), mean.cpu().double().numpy()[:, None]], axis=1)
    title = "difference (red is forgetting); last column: mean of the others"
    heatmap(panels[2], difference.new_tensor(with_mean), names, [*names, "mean"], title=title, diverging=True, **shared)
    panels[2].axvline(len(names) - 0.5, color="black")
    figure.suptitle(f"Client forgetting, round {round}")
    return figure


def over_rounds(values: Tensor, classes: Sequence[str], rounds: Sequence[int], title: str) -> Figure:
    """A class-by-round heatmap (Flashback, Figures 1b and 5); values (C, rounds) in [0, 1]."""
    figure = Figure(figsize=(12, max(2.5, min(20.0, 0.3 * len(classes)) + 1.2)), layout="constrained")
    names = [str(round) for round in rounds]
    heatmap(figure.subplots(), values, classes, names, title=title, row_title="class", column_title="round")
    return figure


def one_round(values: Tensor, rows: Sequence[str], classes: Sequence[str], round: int) -> Figure:
    """The global model before, each client, the global model after, by class (Flashback, Figure 2); values (rows, C)."""
    figure = Figure(figsize=(max(6.0, min(24.0, 0.6 * len(classes)) + 3), 0.35 * len(rows) + 2), layout="constrained")
    axes = figure.subplots()
    heatmap(
        axes, values, rows, classes, title=f"Accuracy by class within round {round}", row_title="model", column_title="class"
    )
    for line in (0.5, len(rows) - 1.5):
        axes.axhline(line, color="white", linewidth=2)
    return figure


def label_shares(counts: Tensor, rows: Sequence[str], classes: Sequence[str], title: str) -> Figure:
    """Bars of class shares, one a row (Legate et al., Figure 4); counts (rows, C)."""
    shares = counts.cpu().double()
    shares = (shares / shares.sum(dim=1, keepdim=True)).numpy()
    figure = Figure(figsize=(10, 0.35 * len(rows) + 2), layout="constrained")
    axes = figure.subplots()
    colors = _class_colors(len(classes))
    left = np.zeros(len(rows))
    for label, name in enumerate(classes):
        axes.barh(range(len(rows)), shares[:, label], left=left, color=colors[label], label=name)
        left += shares[:, label]
    axes.set(xlim=(0, 1), xlabel="share of the samples", title=title)
    _label(axes.yaxis, rows, rotate=False)
    axes.invert_yaxis()
    if len(classes) <= 20:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return figure


def _class_colors(count: int) -> list:
    return list(colormaps["tab10"].colors[:count]) if count <= 10 else list(colormaps["turbo"](np.linspace(0, 1, count)))


def _label(axis, names: Sequence[str], *, rotate: bool) -> None:
    step = -(-len(names) // 30)  # at most 30 labels an axis
    axis.set_ticks(range(0, len(names), step), names[::step], rotation=90 if rotate else 0)
