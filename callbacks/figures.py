"""The pictures: heatmaps and bars, drawn without any global state of matplotlib.

They are small in inches, so that their text is large: TensorBoard shows them a third of a screen wide.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import matplotlib.style
import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fl_lightning.functional import ClientForgettingScores

# M. Petroff's ten (arXiv 2107.02270): told apart by readers who see colours differently, on white and on black.
TEN_COLORS: list[str] = matplotlib.style.library["petroff10"]["axes.prop_cycle"].by_key()["color"]
_CELLS_WITH_NUMBERS = 300  # above this many cells, numbers in them could not be read,
_COLUMNS_WITH_NUMBERS = 12  # or above this many columns
_NAMES = 30  # labels of a vertical axis,
_COLUMN_NAMES = 16  # and of a horizontal one
_CLIENTS_WITH_DOTS = 200
_BARS = _NAMES - 1  # clients drawn as bars, with the bar of all of them; more are columns of a heatmap
_COLUMNS = 400  # of that heatmap


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
    gamma: float = 1.0,
) -> None:
    """Draw values (rows, columns) on ``axes``: accuracies in [0, 1], or differences in [-1, 1] with 0 white.

    NaN is left grey. Long axes show some of their labels. With ``gamma`` below 1 small values take more of the colours.
    """
    matrix = values.detach().cpu().double().numpy()
    colors, low = ("RdBu", -1.0) if diverging else ("viridis", 0.0)
    axes.set_facecolor("0.85")
    norm = PowerNorm(gamma, vmin=low, vmax=1.0)
    image = axes.imshow(matrix, cmap=colors, norm=norm, aspect="auto", interpolation="nearest")
    axes.set_title(title)
    axes.set_xlabel(column_title)
    axes.set_ylabel(row_title)
    _label(axes.xaxis, columns, _COLUMN_NAMES, rotate=max(map(len, columns), default=0) > 3)
    _label(axes.yaxis, rows, _NAMES)
    if matrix.size <= _CELLS_WITH_NUMBERS and len(columns) <= _COLUMNS_WITH_NUMBERS:
        for (row, column), value in np.ndenumerate(matrix):
            if np.isfinite(value):
                dark = abs(value) > 0.6 if diverging else value < 0.5
                color = "white" if dark else "black"
                number = axes.text(column, row, f"{value:z.2f}", ha="center", va="center", fontsize=6, color=color)
                number.set_in_layout(False)  # it lies within its cell
    axes.figure.colorbar(image, ax=axes, fraction=0.046, pad=0.04)


def accuracy_heatmaps(axes: Sequence[Axes], before: Tensor, after: Tensor, clients: Sequence[str], label: str = "") -> None:
    """Draw accuracies around the local fits: a heatmap before and one after, or, by one received model, both in one.

    Args:
        axes: as many as ``before`` has dimensions.
        before: (K,), the model that all clients receive on the data of each, or (K, K), row i the model that client i has.
        after: (K, K), row i the model of client i, column k the data of client k.
        clients: names of the K clients.
        label: a line above the first title.
    """
    draw = partial(heatmap, row_title="model of client", column_title="data of client")
    above = f"{label}\n" if label else ""
    if before.ndim == 1:
        rows = ["received", *clients]
        draw(axes[0], torch.cat([before[None], after]), rows, clients, title=f"{above}received and after the local fit")
        axes[0].axhline(0.5, color="white", linewidth=2)
    else:
        draw(axes[0], before, clients, clients, title=f"{above}before the local fit")
        draw(axes[1], after, clients, clients, title="after the local fit")


def client_forgetting_picture(
    before: Tensor, after: Tensor, scores: ClientForgettingScores, clients: Sequence[int], round: int
) -> Figure:
    """Accuracies around the local fits, and their difference with its means (Legate et al., Figures 1, 5-7).

    The last column is the mean of each model over the data of the others, as in the paper's figures, the last row that of each
    client's data over the models of the others, F_k.

    Args:
        before: (K,) or (K, K), as :func:`accuracy_heatmaps` takes it.
        after: (K, K), row i the model of client i, column k the data of client k.
        scores: the difference and its means.
        clients: indices of the K clients.
        round: for the title.
    """
    names = [str(client) for client in clients]
    figure = Figure(figsize=(8, 8), layout="constrained")
    # The last one, the difference, is what the picture is about.
    *panels, difference = figure.subplot_mosaic(("A;C", "AB;CC")[before.ndim - 1], height_ratios=(3, 4)).values()
    accuracy_heatmaps(panels, before, after, names)
    with_means = torch.full((len(names) + 1, len(names) + 1), float("nan"), dtype=torch.float64)
    with_means[:-1, :-1], with_means[:-1, -1], with_means[-1, :-1] = scores.forgetting, scores.per_model, scores.per_data
    title = "difference: red is forgetting; at the end means of the others"
    draw = partial(heatmap, row_title="model of client", column_title="data of client")
    draw(difference, with_means, [*names, "mean"], [*names, "mean"], title=title, diverging=True)
    difference.axvline(len(names) - 0.5, color="black")
    difference.axhline(len(names) - 0.5, color="black")
    figure.suptitle(f"Client forgetting, round {round}: accuracy on validation samples", fontsize="x-large")
    return figure


def over_rounds(values: Tensor, classes: Sequence[str], rounds: Sequence[int], title: str) -> Figure:
    """A class-by-round heatmap (Flashback, Figures 1b and 5); values (C, rounds) in [0, 1]."""
    names = [str(round) for round in rounds]
    size = (7.0, _height_of_classes(classes))
    return _one_heatmap(size, values, classes, names, title=title, row_title="class", column_title="round")


def one_round(values: Tensor, rows: Sequence[str], classes: Sequence[str], round: int) -> Figure:
    """The global model before, each client, the global model after, by class (Flashback, Figure 2); values (rows, C)."""
    figure = Figure(figsize=(max(5.0, min(24.0, 0.4 * len(classes)) + 3), 0.25 * len(rows) + 1.5), layout="constrained")
    axes = figure.subplots()
    heatmap(
        axes, values, rows, classes, title=f"Accuracy by class within round {round}", row_title="model", column_title="class"
    )
    for line in (0.5, len(rows) - 1.5):
        axes.axhline(line, color="white", linewidth=2)
    return figure


def accuracy_of_clients(accuracy: Tensor, title: str) -> Figure:
    """How the accuracies of clients are spread, (N,), NaN for those without samples: a histogram, and all of them in order."""
    known = np.sort(accuracy[~accuracy.isnan()].cpu().double().numpy())
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    counted, ranked = figure.subplots(1, 2)
    counted.hist(known, bins=np.linspace(0, 1, 21))
    counted.set(title=f"{len(known):,} clients", xlabel="accuracy", ylabel="clients", xlim=(0, 1))
    counted.yaxis.set_major_locator(_round_ticks(6))
    ranked.plot(np.arange(1, len(known) + 1), known, marker="." if len(known) <= _CLIENTS_WITH_DOTS else None)
    lowest = known[: -(-len(known) // 10)]
    for value, name, style in ((known.mean(), "mean", "-"), (lowest.mean(), "worst tenth", "--")):
        ranked.axhline(value, color="black", linestyle=style, linewidth=1, label=f"{name} {value:.3f}")
    ranked.set(title="each client", xlabel="clients, lowest first", ylabel="accuracy", ylim=(-0.02, 1.02))
    ranked.xaxis.set_major_locator(_round_ticks(6))
    ranked.legend(loc="lower right", fontsize=8)
    figure.suptitle(title)
    return figure


def label_shares(counts: Tensor, rows: Sequence[str], classes: Sequence[str], title: str) -> Figure:
    """Bars of class shares, one a row (Legate et al., Figure 4); counts (rows, C)."""
    figure = Figure(figsize=(7.5, 0.25 * len(rows) + 1.5), layout="constrained")
    axes = figure.subplots()
    share_bars(axes, counts, rows, classes, title)
    if len(classes) <= 20:
        legend = figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
        for text in legend.get_texts():
            text.set_parse_math(False)
    return figure


def share_bars(axes: Axes, counts: Tensor, rows: Sequence[str], classes: Sequence[str], title: str) -> None:
    """Draw the bars of :func:`label_shares` on ``axes``."""
    shares = counts.cpu().double()
    shares = (shares / shares.sum(dim=1, keepdim=True).clamp_min(1)).numpy()
    count = len(classes)
    colors = TEN_COLORS if count <= len(TEN_COLORS) else colormaps["turbo"](np.linspace(0, 1, count))
    left = np.zeros(len(rows))
    for label, name in enumerate(classes):
        axes.barh(range(len(rows)), shares[:, label], left=left, color=colors[label], label=name)
        left += shares[:, label]
    axes.set(xlim=(0, 1), xlabel="share of the samples")
    axes.set_title(title, parse_math=False)
    _label(axes.yaxis, rows, _NAMES)
    axes.set_ylim(len(rows) - 0.5, -0.5)


def partition_picture(counts: Tensor, classes: Sequence[str], title: str) -> Figure:
    """Who holds what: bars for up to 29 clients and all of them together, a heatmap for more; counts (N, C)."""
    if len(counts) > _BARS:
        return label_map(counts, classes, title)
    rows = [(f"client {client}", row) for client, row in enumerate(counts)]
    rows.append(("all clients", counts.sum(dim=0)))
    names = [f"{name} ({int(row.sum()):,})" for name, row in rows]
    return label_shares(torch.stack([row for _, row in rows]), names, classes, f"{title}\n(in brackets: samples)")


def label_map(counts: Tensor, classes: Sequence[str], title: str) -> Figure:
    """Class shares of many clients, a column a client, and their sizes; counts (N, C).

    Clients are sorted by their most frequent class and its share. Above 400 clients a column is the mean of neighbours. The
    title says so.
    """
    table = counts.cpu().double().numpy()
    sizes = table.sum(axis=1)
    shares = table / np.maximum(sizes, 1)[:, None]
    # Ties go to the classes in turn: small clients have many, and the first class would look like the largest.
    turn = np.add.outer(np.arange(len(shares)), np.arange(len(classes))) % len(classes)
    order = np.lexsort((-shares.max(axis=1), (shares + 1e-9 * turn).argmax(axis=1)))
    together = -(-len(order) // _COLUMNS)  # clients a column
    starts = np.arange(0, len(order), together)
    columns = np.add.reduceat(shares[order], starts) / np.diff(starts, append=len(order))[:, None]
    figure = Figure(figsize=(10, max(3.0, min(12.0, 0.25 * len(classes)) + 1.5)), layout="constrained")
    shown, ranked = figure.subplots(1, 2, width_ratios=(5, 1))
    how = f"share of each class in {len(order):,} clients, sorted by their most frequent class"
    how += f"; a column is the mean of {together}" * (together > 1)
    values = torch.from_numpy(columns.T)
    names = [""] * len(starts)  # not those of columns, but round numbers of clients
    heatmap(shown, values, classes, names, title=how, row_title="class", column_title="clients", gamma=0.5)
    ticks = [tick for tick in _round_ticks(10).tick_values(0, len(order)) if 0 <= tick < len(order)]
    shown.set_xticks([(tick + 0.5) / together - 0.5 for tick in ticks], [f"{tick:,.0f}" for tick in ticks])
    ranked.plot(np.arange(1, len(sizes) + 1), np.sort(sizes)[::-1])
    ranked.set(title="samples of a client", xlabel="clients, largest first")
    if 0 < sizes.min() < sizes.max() / 10:
        ranked.set_yscale("log")
    else:
        ranked.set_ylim(bottom=0)
        ranked.yaxis.set_major_locator(_round_ticks(8))
    ranked.xaxis.set_major_locator(_round_ticks(3))
    for axis in (ranked.xaxis, ranked.yaxis):
        axis.set_major_formatter("{x:,.0f}")
    figure.suptitle(title, parse_math=False)
    return figure


def _round_ticks(most: int) -> MaxNLocator:
    return MaxNLocator(most, steps=[1, 2, 5, 10], integer=True)


def task_table(values: Tensor, title: str = "accuracy, mean over clients") -> Figure:
    """Accuracy after each task, (T, T), row t after task t, column i on task i; NaN is left grey."""
    return _task_by_task(values, title=title, row_title="after task", column_title="on task")


def task_confusion_table(shares: Tensor, task: int) -> Figure:
    """Which task samples are taken for after a task (counted from 0), (T, T), rows sum to 1; NaN is left grey."""
    title = f"share of each task's samples by predicted task, after task {task + 1}"
    return _task_by_task(shares, title=title, row_title="samples of task", column_title="predicted as a class of task")


def classes_after_tasks(accuracy: Tensor, classes: Sequence[str]) -> Figure:
    """Drop of each class from its best accuracy, a column after each task; a class that never rose has nothing to drop from.

    Args:
        accuracy: (C, T), of each class after each task; NaN, not seen yet, is left grey.
        classes: their names.
    """
    best = accuracy.nan_to_num(nan=-1.0).cummax(dim=1).values
    names = [str(number) for number in range(1, accuracy.shape[1] + 1)]
    highest = best[:, -1].tolist()
    rows = [f"{name}, best {value:.2f}" if value >= 0 else name for name, value in zip(classes, highest, strict=True)]
    draw = partial(_one_heatmap, title="drop in accuracy since the best of each class", column_title="after task")
    return draw((6.8, _height_of_classes(classes)), best - accuracy, rows, names, row_title="class (came and went)")


def attention_table(values: Tensor, tasks: Sequence[str], foreign: Sequence[str], client: int) -> Figure:
    """Attention of one client's tasks, (T, F), to foreign ones; NaN is left grey, the colours reach to the largest value."""
    size = (max(5.0, min(20.0, 0.45 * len(foreign) + 3)), 0.4 * len(tasks) + 3.5)
    largest = float(values.nan_to_num().abs().max()) or 1.0
    title = f"attention of client {client}, in units of {largest:.3g}"
    draw = partial(_one_heatmap, row_title="task of the client", column_title="task of another client")
    return draw(size, values / largest, tasks, foreign, title=title, diverging=True)


def _task_by_task(values: Tensor, **titles: str) -> Figure:
    names = [str(task) for task in range(1, len(values) + 1)]
    size = max(3.0, min(10.0, 0.5 * len(names) + 2))
    return _one_heatmap((size + 1, size), values, names, names, **titles)


def _one_heatmap(size: tuple[float, float], values: Tensor, rows: Sequence[str], columns: Sequence[str], **how: Any) -> Figure:
    """A figure of a size in inches with one heatmap, drawn as :func:`heatmap` says."""
    figure = Figure(figsize=size, layout="constrained")
    heatmap(figure.subplots(), values, rows, columns, **how)
    return figure


def _height_of_classes(classes: Sequence[str]) -> float:
    return max(2.5, min(20.0, 0.25 * len(classes)) + 1.2)


def _label(axis, names: Sequence[str], most: int, *, rotate: bool = False) -> None:
    """Write names, in which a dollar is a dollar; of more than ``most`` some."""
    step = -(-len(names) // most)
    axis.set_ticks(range(0, len(names), step), names[::step], rotation=90 if rotate else 0, parse_math=False)
