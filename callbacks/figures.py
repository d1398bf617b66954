"""The pictures: heatmaps and bars, drawn without any global state of matplotlib but its settings.

A figure has the width of ``figure.figsize``, and the height that its rows of text need at the font size. Text is never shrunk.
``fl-lightning figures`` sets the width of a paper's column; TensorBoard gets matplotlib's defaults.
"""

import re
import textwrap
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import matplotlib.style
import numpy as np
import torch
from matplotlib import colormaps, rcParams
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator
from torch import Tensor

from fl_lightning.functional import ClientForgettingScores

# M. Petroff's ten (arXiv 2107.02270): told apart by readers who see colours differently, on white and on black.
TEN_COLORS: list[str] = matplotlib.style.library["petroff10"]["axes.prop_cycle"].by_key()["color"]
_NUMBER_SIZE = 7  # points: the least that is read in print
_NUMBER_WIDTH = 0.22  # inches of "-.22" in that size, with a gap
_WIDE_CELL = 0.26  # of numbers next to which there is room for a colour bar
_CELLS_WITH_NUMBERS = 300  # with more, drawing them takes long
_NAMES = 30  # labels of a vertical axis,
_COLUMN_NAMES = 16  # and of a horizontal one
_LONGEST_NAME = 0.4  # of the width of a panel: a longer one would leave no space for the picture
_CHARACTER = 0.65  # width of a character as a part of its font size
_JOINT = "\N{NO-BREAK SPACE}"  # where a title is not wrapped
_PANEL = 24  # least width of one of two panels side by side, as multiples of the font size
_LABELS, _BAR = 6.2, 3  # width of what is next to a heatmap, its labels and its colour bar, in the same unit
_CLIENTS_WITH_DOTS = 200
_BARS = _NAMES - 1  # clients drawn as bars, with the bar of all of them; more are columns of a heatmap
_COLUMNS = 400  # of that heatmap
_RANKED = 14  # height of the sizes of clients below it, as a multiple of the font size


def panels(count: int, height: float, **shared: Any) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels, two in a row where the width allows it.

    ``height`` is that of a row, in inches, and ``shared`` are arguments of ``subplots``.
    """
    columns = min(count, panels_in_a_row())
    rows = -(-count // columns)
    figure = Figure(figsize=(rcParams["figure.figsize"][0], rows * height), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def one_panel(rows: int) -> Axes:
    """The axes of a new figure with one panel of so many rows of names."""
    return panels(1, height_of(rows))[1][0]


def panels_in_a_row() -> int:
    """Two where the width of figures allows it, else one."""
    return 2 if rcParams["figure.figsize"][0] >= 2 * _ems(_PANEL) else 1


def height_of(rows: int) -> float:
    """Inches of a heatmap or of bars with so many rows of names, with its title and its axis."""
    return _ems(min(max(1.5 * rows + 6, 17), 90))


def wrapped(text: str, width: float) -> str:
    """A title or the name of an axis, in lines that fit into a width in inches; a number stays with the word before it."""
    most = max(1, int(width / (_CHARACTER * _ems(1))))
    joined = re.sub(r"(?<=\w) (?=-?\.?\d)", _JOINT, text)
    return "\n".join(_balanced(line, most) for line in joined.splitlines()).replace(_JOINT, " ")


def _balanced(line: str, most: int) -> str:
    """As few lines as so many characters allow, of about the same length."""
    fewest = textwrap.wrap(line, most)
    longest = max(map(len, textwrap.wrap(line, 1, break_long_words=False)), default=most)
    narrower = (textwrap.wrap(line, width) for width in range(longest, most))
    return "\n".join(next((lines for lines in narrower if len(lines) == len(fewest)), fewest))


def in_legend(label: str) -> str:
    """A label for a legend: matplotlib leaves out those that begin with an underscore, such as ``__main__.MyMethod``."""
    return f" {label}" if label.startswith("_") else label


def legend_below(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend below all panels, each label once, in as many columns as fit, and space for it."""
    found = {label: handle for one in axes for handle, label in zip(*one.get_legend_handles_labels(), strict=True)}
    if not found:
        return
    size = rcParams["legend.fontsize"]
    points = size if isinstance(size, int | float) else rcParams["font.size"]
    most = int(72 * figure.get_figwidth() / (_CHARACTER * points)) - 6  # characters of a row, without its line
    columns = max(1, min(5, len(found), most // (max(map(len, found)) + 6)))
    labels = [textwrap.fill(label, most) for label in found]
    legend = figure.legend(found.values(), labels, loc="outside lower left", ncols=columns)
    for text in legend.get_texts():
        text.set_parse_math(False)
    lines = sum(label.count("\n") + 1 for label in labels)
    figure.set_figheight(figure.get_figheight() + 1.5 * points / 72 * (-(-lines // columns) + 1))


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
) -> Figure:
    """Draw values (rows, columns) on ``axes``: accuracies in [0, 1], or forgetting in [-1, 1] with 0 white and 1 red.

    NaN is left grey. Long axes show some of their labels. Cells show their numbers where these fit; else, and where both have
    room, there is a colour bar. With ``gamma`` below 1 small values take more of the colours. Returns the figure of the axes.
    """
    matrix = values.detach().cpu().double().numpy()
    colors, low = ("RdBu_r", -1.0) if diverging else ("viridis", 0.0)
    axes.set_facecolor("0.85")
    axes.grid(False)
    norm = PowerNorm(gamma, vmin=low, vmax=1.0)
    image = axes.imshow(matrix, cmap=colors, norm=norm, aspect="auto", interpolation="nearest")
    named = _CHARACTER * _NUMBER_SIZE / 72 * min(max(map(len, rows), default=0), _longest_name(axes))
    axes.set_title(wrapped(title, width_of(axes) - named))
    axes.set_xlabel(column_title)
    axes.set_ylabel(row_title)
    cell, beside_a_bar = ((width_of(axes) - _ems(taken)) / max(len(columns), 1) for taken in (_LABELS, _LABELS + _BAR))
    in_cells = matrix.size <= _CELLS_WITH_NUMBERS and cell >= _NUMBER_WIDTH
    with_bar = not in_cells or beside_a_bar >= _WIDE_CELL
    _label_columns(axes.xaxis, columns, beside_a_bar if with_bar else cell)
    _label(axes.yaxis, rows, _NAMES)
    if in_cells:
        for (row, column), value in np.ndenumerate(matrix):
            if np.isfinite(value):
                dark = abs(value) > 0.6 if diverging else value < 0.5
                color = "white" if dark else "black"
                shown = re.sub(r"^(-?)0\.", r"\1.", f"{value:z.2f}").replace("1.00", "1.0")  # a cell is narrow
                number = axes.text(column, row, shown, ha="center", va="center", fontsize=_NUMBER_SIZE, color=color)
                number.set_in_layout(False)  # it is within its cell, and to ask for its size is slow
    if with_bar:
        axes.figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02, ticks=np.linspace(low, 1, 5), format="%g")
    return _figure_of(axes)


def _figure_of(axes: Axes) -> Figure:
    figure = axes.get_figure(root=True)
    assert figure is not None  # the axes are not removed
    return figure


def _longest_name(axes: Axes) -> int:
    """Characters of a name next to a panel."""
    return int(_LONGEST_NAME * 72 * width_of(axes) / (_CHARACTER * _NUMBER_SIZE))


def _ems(count: float) -> float:
    """So many times the font size in inches."""
    return count * rcParams["font.size"] / 72


def width_of(axes: Axes) -> float:
    """Inches of a panel with its labels."""
    place, width = axes.get_subplotspec(), axes.figure.bbox.width / axes.figure.dpi
    if place is None:
        return width
    ratios = np.asarray(place.get_gridspec().get_width_ratios(), dtype=np.float64)
    return float(width * ratios[place.colspan.start] / ratios.sum())


def _label_columns(axis: Axis, names: Sequence[str], cell: float) -> None:
    """Names below columns of a width in inches: across where they fit, else upright; of many some, numbers across."""
    neighbours = max(((len(one) + len(other)) / 2 for one, other in pairwise(names)), default=0)
    widest = _CHARACTER * _NUMBER_SIZE / 72 * (neighbours + 0.5)
    if len(names) > _COLUMN_NAMES and all(map(str.isdecimal, names)):
        _label(axis, names, min(_COLUMN_NAMES, max(1, int(cell * len(names) / widest))))
    else:
        _label(axis, names, _COLUMN_NAMES, rotate=widest > cell)


def _label(axis: Axis, names: Sequence[str], most: int, *, rotate: bool = False) -> None:
    """Write names, in which a dollar is a dollar; of more than ``most`` some, and of long ones both ends.

    Upright names make the figure higher, once for a row of panels, so that the picture above them is not.
    """
    step, half = max(1, -(-len(names) // most)), _longest_name(axis.axes) // 2
    short = [name if len(name) <= 2 * half else f"{name[: half - 1]}…{name[-half:]}" for name in names[::step]]
    axis.set_ticks(range(0, len(names), step), short, rotation=90 if rotate else 0, parse_math=False)
    place = axis.axes.get_subplotspec()
    if rotate and place is not None and place.colspan.start == 0:
        figure = _figure_of(axis.axes)
        figure.set_figheight(figure.get_figheight() + _CHARACTER * _NUMBER_SIZE / 72 * max(map(len, short)))


def client_forgetting_picture(
    before: Tensor,
    after: Tensor,
    scores: ClientForgettingScores,
    clients: Sequence[int],
    round: int,
    label: str = "",
    on: Sequence[Axes] = (),
) -> Figure:
    """Accuracies around the local fits, and what they forget with its means (Legate et al., Figures 1, 5-7).

    The model that all clients receive is the first row of the accuracies; models of their own have a panel before. Forgetting
    is the accuracy before less that after, with the means of each model over the data of the others in the last column, and
    those of each client's data over the models of the others, F_k, in the last row.

    Args:
        before: (K,), the model that all clients receive on the data of each, or (K, K), row i the model that client i has.
        after: (K, K), row i the model of client i, column k the data of client k.
        label: above each title.
        on: axes, one more than ``before`` has dimensions, in a figure with a title of its own; none: in a new figure.
    """
    axes = on
    if not axes:
        figure, axes = panels(before.ndim + 1, height_of(len(clients) + 1))
        figure.suptitle(f"Client forgetting on validation samples, round {round}")
    names = [str(client) for client in clients]
    draw = partial(heatmap, row_title="model of client", column_title="data of client")
    above = f"{label}: " if label else ""
    if before.ndim == 1:
        rows = ["before", *names]
        draw(axes[0], torch.cat([before[None], after]), rows, names, title=f"{above}accuracy before and after the fit")
        axes[0].axhline(0.5, color="white", linewidth=2)
    else:
        draw(axes[0], before, names, names, title=f"{above}accuracy before the fit")
        draw(axes[1], after, names, names, title=f"{above}accuracy after the fit")
    forgotten = torch.full((len(names) + 1, len(names) + 1), float("nan"), dtype=torch.float64)
    forgotten[:-1, :-1], forgotten[:-1, -1], forgotten[-1, :-1] = scores.forgetting, scores.per_model, scores.per_data
    with_mean = [*names, "mean"]
    title = f"{above}forgetting, and means over the others"
    figure = draw(axes[-1], -forgotten, with_mean, with_mean, title=title, diverging=True)
    for line in (axes[-1].axvline, axes[-1].axhline):
        line(len(names) - 0.5, color="black", linewidth=1)
    return figure


def over_rounds(
    values: Tensor,
    classes: Sequence[str],
    rounds: Sequence[int],
    title: str,
    on: Axes | None = None,
    *,
    diverging: bool = False,
) -> Figure:
    """A class-by-round heatmap (Flashback, Figures 1b and 5), in a new figure or ``on`` axes.

    Args:
        values: (C, rounds), accuracies, or forgetting if ``diverging``.
    """
    return heatmap(
        on or one_panel(len(classes)),
        values,
        classes,
        [str(round) for round in rounds],
        title=title,
        row_title="class",
        column_title="round",
        diverging=diverging,
    )


def client_class_change(
    values: Tensor, holds: Tensor, clients: Sequence[int], classes: Sequence[str], title: str, on: Axes | None = None
) -> Figure:
    """A client-by-class heatmap of changes on the axes ``on``, by default of a new figure.

    White is 0; classes that a client holds have a frame.

    Args:
        values: (K, C), NaN is left grey. Colours end at -1 and 1.
        holds: (K, C), whether a client holds a class.
    """
    axes = on or one_panel(len(values))
    how = {"row_title": "", "column_title": "class (framed: the client holds it)", "diverging": True}
    figure = heatmap(axes, values, _numbered(clients), classes, title=title, **how)
    for row, column in holds.cpu().nonzero().tolist():
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=0.8))
    return figure


def similarity_by_layer(
    values: Tensor, clients: Sequence[int], layers: Sequence[str], round: int, title: str = "", on: Axes | None = None
) -> Figure:
    """A client-by-layer heatmap of similarities (K, layers) in [0, 1], in a new figure or ``on`` axes."""
    title = title or f"Linear CKA of the global model and each client's after its fit, round {round}"
    axes = on or one_panel(len(values))
    return heatmap(axes, values, _numbered(clients), layers, title=title, row_title="", column_title="layer")


def one_round(
    values: Tensor, clients: Sequence[int], classes: Sequence[str], round: int, title: str = "", on: Axes | None = None
) -> Figure:
    """The global model before, each client, the global model after, by class (Flashback, Figure 2); (1 + K + 1, C).

    In a new figure, or ``on`` axes.
    """
    axes, rows = on or one_panel(len(values)), ["global before", *_numbered(clients), "global after"]
    title = title or f"Accuracy by class within round {round}"
    figure = heatmap(axes, values, rows, classes, title=title, row_title="", column_title="class")
    for line in (0.5, len(rows) - 1.5):
        axes.axhline(line, color="white", linewidth=2)
    return figure


def _numbered(clients: Sequence[int]) -> list[str]:
    return [f"client {client}" for client in clients]


def accuracy_of_clients(accuracy: Tensor, title: str) -> Figure:
    """How the accuracies of clients are spread, (N,), NaN for those without samples: a histogram, and all of them in order."""
    known = np.sort(accuracy[~accuracy.isnan()].cpu().double().numpy())
    figure, (counted, ranked) = panels(2, _ems(20))
    counted.hist(known, bins=np.linspace(0, 1, 21).tolist())
    counted.set(title=f"{len(known):,} clients", xlabel="accuracy", ylabel="clients", xlim=(0, 1))
    counted.yaxis.set_major_locator(_round_ticks(6))
    ranked.plot(np.arange(1, len(known) + 1), known, marker="." if len(known) <= _CLIENTS_WITH_DOTS else None)
    lowest = known[: -(-len(known) // 10)]
    for value, name, style in ((known.mean(), "mean", "-"), (lowest.mean(), "worst tenth", "--")):
        ranked.axhline(value, color="black", linestyle=style, linewidth=1, label=f"{name} {value:.3f}")
    ranked.set(title="each client", xlabel="clients, lowest first", ylabel="accuracy", ylim=(-0.02, 1.02))
    ranked.xaxis.set_major_locator(_round_ticks(6))
    ranked.legend(loc="upper left")
    figure.suptitle(title)
    return figure


def label_shares(counts: Tensor, rows: Sequence[str], classes: Sequence[str], title: str) -> Figure:
    """Bars of class shares, one a row (Legate et al., Figure 4); counts (rows, C)."""
    axes = one_panel(len(rows))
    share_bars(axes, counts, rows, classes, title)
    figure = _figure_of(axes)
    if len(classes) <= 20:
        legend_below(figure, [axes])
    return figure


def cohort_shares(counts: Tensor, all_clients: Tensor, clients: Sequence[int], classes: Sequence[str], round: int) -> Figure:
    """:func:`label_shares` of a round's clients (K, C), of them together, and of all clients (C,)."""
    rows = torch.cat([counts, counts.sum(dim=0, keepdim=True), all_clients[None]])
    names = [*(f"client {client}" for client in clients), "cohort", "all clients"]
    return label_shares(rows, names, classes, f"Labels of the cohort, round {round}")


def share_bars(axes: Axes, counts: Tensor, rows: Sequence[str], classes: Sequence[str], title: str) -> None:
    """Draw the bars of :func:`label_shares` on ``axes``."""
    shares = counts.cpu().double()
    shares = (shares / shares.sum(dim=1, keepdim=True).clamp_min(1)).numpy()
    count = len(classes)
    colors = TEN_COLORS if count <= len(TEN_COLORS) else colormaps["turbo"](np.linspace(0, 1, count))
    left = np.zeros(len(rows))
    for label, name in enumerate(classes):
        axes.barh(range(len(rows)), shares[:, label], left=left, color=colors[label], label=in_legend(name))
        left += shares[:, label]
    axes.set(xlim=(0, 1), xlabel="share of the samples")
    axes.set_title(title, parse_math=False)
    _label(axes.yaxis, rows, _NAMES)
    axes.set_ylim(len(rows) - 0.5, -0.5)


def partition_picture(counts: Tensor, classes: Sequence[str], title: str, sizes: Tensor | None = None) -> Figure:
    """Who holds what: bars for up to 29 clients and all of them together, a heatmap for more.

    Args:
        counts: (N, C) labels or tokens of each class at each client.
        sizes: (N,) samples of each client; by default each has one label.
    """
    if len(counts) > _BARS:
        return label_map(counts, classes, title, sizes)
    sizes = counts.sum(dim=1) if sizes is None else sizes
    names = [
        *(f"client {client} ({size:,})" for client, size in enumerate(sizes.tolist())),
        f"all clients ({int(sizes.sum()):,})",
    ]
    rows = torch.cat([counts, counts.sum(dim=0, keepdim=True)])
    return label_shares(rows, names, classes, f"{title}\n(in brackets: samples)")


def label_map(counts: Tensor, classes: Sequence[str], title: str, sizes: Tensor | None = None) -> Figure:
    """Class shares of many clients, a column a client, and their sizes; (N, C) and (N,), as in ``partition_picture``.

    Clients are sorted by their most frequent class and its share. Above 400 clients a column is the mean of neighbours. The
    title states it.
    """
    table = counts.cpu().double().numpy()
    held = table.sum(axis=1)
    samples = held if sizes is None else sizes.cpu().numpy()
    shares = table / np.maximum(held, 1)[:, None]
    # Ties go to the classes in turn: small clients have many, and the first class would look like the largest.
    turn = np.add.outer(np.arange(len(shares)), np.arange(len(classes))) % len(classes)
    order = np.lexsort((-shares.max(axis=1), (shares + 1e-9 * turn).argmax(axis=1)))
    together = -(-len(order) // _COLUMNS)  # clients a column
    starts = np.arange(0, len(order), together)
    columns = np.add.reduceat(shares[order], starts) / np.diff(starts, append=len(order))[:, None]
    heights = height_of(len(classes)), _ems(_RANKED)
    figure = Figure(figsize=(rcParams["figure.figsize"][0], sum(heights)), layout="constrained")
    shown, ranked = figure.subplots(2, height_ratios=heights)
    how = f"share of each class in {len(order):,} clients, sorted by their most frequent class"
    how += f"; a column is the mean of {together}" * (together > 1)
    values = torch.from_numpy(columns.T)
    names = [""] * len(starts)  # not those of columns, but round numbers of clients
    heatmap(shown, values, classes, names, title=how, row_title="class", column_title="clients", gamma=0.5)
    ticks = [tick for tick in _round_ticks(10).tick_values(0, len(order)) if 0 <= tick < len(order)]
    shown.set_xticks([(tick + 0.5) / together - 0.5 for tick in ticks], [f"{tick:,.0f}" for tick in ticks], rotation=0)
    ranked.plot(np.arange(1, len(samples) + 1), np.sort(samples)[::-1])
    ranked.set(title="samples of each client", xlabel="clients, largest first")
    if 0 < samples.min() < samples.max() / 10:
        ranked.set_yscale("log")
        ranked.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if samples.min() > samples.max() / 100 else (1,)))
        ranked.minorticks_off()
    else:
        ranked.set_ylim(bottom=0)
        ranked.yaxis.set_major_locator(_round_ticks(5))
    ranked.xaxis.set_major_locator(_round_ticks(10))
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

    Accuracies are (C, T), of each class after each task; NaN, not seen yet, is left grey.
    """
    best = accuracy.nan_to_num(nan=-1.0).cummax(dim=1).values
    names = [str(number) for number in range(1, accuracy.shape[1] + 1)]
    highest = best[:, -1].tolist()
    rows = [f"{name}, best {value:.2f}" if value >= 0 else name for name, value in zip(classes, highest, strict=True)]
    titles: dict[str, Any] = {"title": "drop in accuracy since the best of each class", "row_title": "class (came and went)"}
    return heatmap(one_panel(len(rows)), best - accuracy, rows, names, column_title="after task", **titles)


def attention_table(values: Tensor, tasks: Sequence[str], foreign: Sequence[str], client: int) -> Figure:
    """Attention of one client's tasks, (T, F), to foreign ones; NaN is left grey, the colours reach to the largest value."""
    largest = float(values.nan_to_num().abs().max()) or 1.0
    titles: dict[str, Any] = {"row_title": "task of the client", "column_title": "task of another client"}
    titles["title"] = f"attention of client {client}, in units of {largest:.3g}"
    return heatmap(one_panel(len(tasks)), values / largest, tasks, foreign, diverging=True, **titles)


def _task_by_task(values: Tensor, **titles: Any) -> Figure:
    names = [str(task) for task in range(1, len(values) + 1)]
    return heatmap(one_panel(len(names)), values, names, names, **titles)
