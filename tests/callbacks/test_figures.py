"""Pictures compared for what they must contain: values, order of rows and columns, labels."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from legible import assert_legible
from matplotlib import rc_context, rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fl_lightning.callbacks.figures import (
    accuracy_of_clients,
    attention_table,
    classes_after_tasks,
    client_class_change,
    client_forgetting_picture,
    label_map,
    label_shares,
    one_round,
    over_rounds,
    partition_picture,
    similarity_by_layer,
    task_table,
    wrapped,
)
from fl_lightning.functional import ClientForgettingScores, client_forgetting
from fl_lightning.report.figures import drawing_style


def shown(axes):
    """The matrix behind a heatmap."""
    return np.ma.filled(axes.images[0].get_array(), np.nan)


def names(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


@pytest.mark.parametrize("keeps_models", [False, True])
def test_client_forgetting_shows_before_after_and_forgetting_with_means(keeps_models):
    """A row a model and a column a dataset. The model that all receive is the first row; models of their own have a panel.
    Forgetting, positive where accuracy is lost, has one more of each, the means of the others."""
    received = torch.tensor([0.5, 0.25])
    before = torch.tensor([[0.5, 0.25], [0.5, 0.25]])
    after = torch.tensor([[0.75, 0.0], [0.25, 0.5]])
    scores = ClientForgettingScores(after - before, torch.tensor([-0.25, -0.5]), torch.tensor([-0.5, -0.25]))
    figure = client_forgetting_picture(before if keeps_models else received, after, scores, [3, 8], round=40)
    if keeps_models:
        first, second, forgotten = figure.axes[:3]
        np.testing.assert_allclose(shown(first), before)
        np.testing.assert_allclose(shown(second), after)
    else:
        both, forgotten = figure.axes[:2]
        np.testing.assert_allclose(shown(both), [[0.5, 0.25], [0.75, 0.0], [0.25, 0.5]])
        assert (names(both.yaxis), names(both.xaxis)) == (["before", "3", "8"], ["3", "8"])
    np.testing.assert_allclose(shown(forgotten), [[-0.25, 0.25, 0.25], [0.25, -0.25, 0.5], [0.5, 0.25, np.nan]])
    assert names(forgotten.xaxis) == ["3", "8", "mean"]
    assert names(forgotten.yaxis) == ["3", "8", "mean"]
    assert forgotten.images[0].get_clim() == (-1, 1)
    assert "round 40" in figure.get_suptitle()


def test_numbers_in_cells():
    """Without a zero before the point, but with every other digit."""
    values = torch.tensor([[0.5, -0.25, -0.001], [1.0, -1.0, 10.375]], dtype=torch.float64)
    figure = client_class_change(values, values > 0, [0, 1], ["a", "b", "c"], "changes")
    assert [text.get_text() for text in figure.axes[0].texts] == [".50", "-.25", ".00", "1.0", "-1.0", "10.38"]


@pytest.mark.parametrize(("clients", "numbers"), [(10, True), (11, False)])
def test_cells_of_a_papers_column_have_numbers_or_a_colour_bar(clients, numbers):
    """3.25 inches less 6.2 times 8 points for the labels, over 11 or 12 columns, are .23 and .21 inches a cell: -.22 takes .19
    in 7 points. With a number in each cell there is no room for the bar."""
    before, after = torch.rand(clients), torch.rand(clients, clients)
    with drawing_style(3.25):
        figure = client_forgetting_picture(before, after, client_forgetting(before, after), range(clients), round=1)
    shown, bars = figure.axes[:2], figure.axes[2:]
    FigureCanvasAgg(figure).draw()
    assert [len(axes.texts) for axes in shown] == [(clients + 1) * clients, ((clients + 1) ** 2 - 1) * numbers]
    for axes in shown if numbers else ():
        boxes = sorted(((text.get_window_extent(), text.get_position()) for text in axes.texts), key=lambda box: box[1][::-1])
        assert all(one.x1 < other.x0 for (one, (_, row)), (other, (_, below)) in pairwise(boxes) if row == below)
        assert {text.get_fontsize() for text in axes.texts} == {7}
    assert len(bars) == (0 if numbers else 1)


def test_over_rounds_has_a_row_a_class_and_a_column_a_round():
    """Values stay where they belong; NaN, a class without samples, is left blank."""
    values = torch.tensor([[0.1, 0.2, 0.3], [float("nan"), 0.5, 0.6]])
    axes = over_rounds(values, ["cat", "dog"], [0, 10, 20], "title").axes[0]
    np.testing.assert_allclose(shown(axes), values)
    assert names(axes.yaxis) == ["cat", "dog"]
    assert names(axes.xaxis) == ["0", "10", "20"]
    assert axes.images[0].get_cmap().name == "viridis"
    drops = over_rounds(values, ["cat", "dog"], [0, 10, 20], "title", diverging=True).axes[0].images[0]
    assert (drops.get_cmap().name, drops.get_clim()) == ("RdBu_r", (-1, 1))


def test_long_names_leave_space_for_the_picture():
    """Both ends stay, of which one may tell more; 40 characters of 7 points are .4 of 6.4 inches."""
    with rc_context({"figure.figsize": (6.4, 4.8)}):
        axes = over_rounds(torch.rand(3, 2), ["x" * 40, f"{'y' * 40}z", "cat"], [1, 2], "title").axes[0]
    assert names(axes.yaxis) == ["x" * 40, f"{'y' * 19}…{'y' * 19}z", "cat"]


@pytest.mark.parametrize(
    ("title", "lines"),
    [
        ("FedAvg, CrossEntropy, lr 0.3", ["FedAvg,", "CrossEntropy, lr 0.3"]),
        ("F_ki of clients in round 10", ["F_ki of clients", "in round 10"]),
        ("two\n\nlines", ["two", "", "lines"]),
        ("ReweightedSoftmaxReweighted x", ["ReweightedSoftmaxReweigh", "ted x"]),
    ],
)
def test_a_title_is_wrapped_into_even_lines(title, lines):
    """At 24 characters a line: a number follows its word, and no line is short because the one above it is full."""
    assert wrapped(title, 24 * 0.65 * rcParams["font.size"] / 72 + 1e-6).splitlines() == lines


def test_one_round_runs_from_global_before_to_global_after():
    """First row the global model before, last row after, clients between, a column a class."""
    values = torch.rand(4, 3)
    axes = one_round(values, [1, 2], ["a", "b", "c"], 5).axes[0]
    np.testing.assert_allclose(shown(axes), values, rtol=1e-6)
    assert names(axes.yaxis) == ["global before", "client 1", "client 2", "global after"]


def test_label_shares_sum_to_one_in_every_row():
    """Counts (3, 1) and (0, 2) are bars of 3/4 + 1/4 and 0 + 1."""
    axes = label_shares(torch.tensor([[3, 1], [0, 2]]), ["client 0", "client 1"], ["a", "b"], "title").axes[0]
    widths = np.array([[bar.get_width() for bar in bars] for bars in axes.containers])
    np.testing.assert_allclose(widths, [[0.75, 0.0], [0.25, 1.0]])
    assert axes.yaxis_inverted()


@pytest.mark.parametrize("classes", [2, 62, 100])
def test_many_classes_and_rounds_can_be_drawn(classes):
    """400 points of 100 classes: at most 30 labels an axis, and the picture renders."""
    figure = over_rounds(torch.rand(classes, 400), [f"class {c}" for c in range(classes)], list(range(400)), "title")
    FigureCanvasAgg(figure).draw()
    assert len(figure.axes[0].get_xticks()) <= 30
    assert len(figure.axes[0].get_yticks()) <= 30


def test_partition_picture_has_a_bar_a_client_and_one_of_all():
    """Counts (3, 1), (0, 2) and (0, 0), and (3, 3) together: sizes in the names; a client without samples has no bar."""
    axes = partition_picture(torch.tensor([[3, 1], [0, 2], [0, 0]]), ["a", "b"], "title").axes[0]
    assert names(axes.yaxis) == ["client 0 (4)", "client 1 (2)", "client 2 (0)", "all clients (6)"]
    widths = np.array([[bar.get_width() for bar in bars] for bars in axes.containers])
    np.testing.assert_allclose(widths, [[0.75, 0.0, 0.0, 0.5], [0.25, 1.0, 0.0, 0.5]])


@pytest.mark.parametrize(("num_clients", "is_map"), [(29, False), (30, True)])
def test_partition_picture_names_every_client_or_draws_a_map(num_clients, is_map):
    """29 bars and that of all are as many names as an axis shows."""
    figure = partition_picture(torch.ones(num_clients, 3, dtype=torch.int64), ["a", "b", "c"], "title")
    FigureCanvasAgg(figure).draw()
    assert bool(figure.axes[0].images) == is_map
    if not is_map:
        assert len(names(figure.axes[0].yaxis)) == 30


@pytest.mark.parametrize("num_clients", [2, 30])
def test_a_partition_picture_of_samples_with_several_labels_has_the_numbers_of_samples(num_clients):
    """Clients with 6 labels of 2 samples."""
    sizes = torch.full((num_clients,), 2)
    axes = partition_picture(torch.full((num_clients, 3), 2), ["a", "b", "c"], "title", sizes).axes
    if num_clients == 2:
        assert names(axes[0].yaxis) == ["client 0 (2)", "client 1 (2)", "all clients (4)"]
    else:
        assert axes[1].lines[0].get_ydata().tolist() == sizes.tolist()


def test_label_map_sorts_clients_by_their_most_frequent_class():
    """Shares (1/4, 3/4), (1, 0), (0, 1), (3/4, 1/4): client 1, 3, then 2, 0; sizes 4, 2, 1, 4 fall."""
    figure = label_map(torch.tensor([[1, 3], [2, 0], [0, 1], [3, 1]]), ["a", "b"], "title")
    np.testing.assert_allclose(shown(figure.axes[0]), [[1, 0.75, 0, 0.25], [0, 0.25, 1, 0.75]])
    assert names(figure.axes[0].yaxis) == ["a", "b"]
    assert figure.axes[1].lines[0].get_ydata().tolist() == [4, 4, 2, 1]
    assert "4 clients, sorted by their most frequent class" in figure.axes[0].get_title()


@pytest.mark.parametrize("num_clients", [401, 50000])
def test_label_map_of_many_clients_is_a_mean_of_neighbours(num_clients):
    """At most 400 columns; half of the clients hold one class each, so the columns do, but for one on the border."""
    counts = torch.zeros(num_clients, 2, dtype=torch.int64)
    counts[torch.arange(num_clients), torch.arange(num_clients) % 2] = 1
    figure = label_map(counts, ["a", "b"], "title")
    FigureCanvasAgg(figure).draw()
    values = shown(figure.axes[0])
    assert values.shape[1] <= 400
    np.testing.assert_allclose(values.sum(axis=0), 1)
    assert ((values == 0) | (values == 1)).all(axis=0).sum() >= values.shape[1] - 1
    assert f"a column is the mean of {-(-num_clients // 400)}" in figure.axes[0].get_title().replace("\n", " ")


CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
PICTURES = {
    "one bar": lambda: partition_picture(torch.arange(1, 101).reshape(10, 10), CLASSES, "Labels"),
    "a map": lambda: label_map(torch.arange(1, 401).reshape(40, 10) ** 2, CLASSES, "Dirichlet(alpha=0.1)"),
    "layers": lambda: similarity_by_layer(torch.ones(10, 3), range(90, 100), ["layers.0.weight", "layers.1", "head"], 20),
    "change": lambda: client_class_change(torch.ones(10, 10), torch.ones(10, 10), range(90, 100), CLASSES, "Change, round 20"),
    "personal": lambda: accuracy_of_clients(torch.linspace(0, 1, 100), "Personal models, round 20"),
    "tasks": lambda: task_table(torch.ones(10, 10)),
    "classes": lambda: classes_after_tasks(torch.ones(10, 5), CLASSES),
    "attention": lambda: attention_table(torch.ones(5, 20), list("12345"), [f"{n} of client 1" for n in range(20)], 3),
}


@pytest.mark.parametrize(("name", "width"), [*((name, 3.25) for name in PICTURES), ("layers", 5.5), ("change", 6.75)])
def test_pictures_are_legible_at_the_width_of_a_paper(name, width):
    """Upright names take no space of the cells: rows are as high as their labels, and a colour bar has its numbers."""
    with drawing_style(width):
        figure = PICTURES[name]()
        assert figure.get_figwidth() == width
        assert_legible(figure)


@pytest.mark.parametrize("draw", [label_shares, label_map, partition_picture])
def test_a_dollar_in_a_name_is_a_dollar(draw):
    r"""matplotlib would read what stands between two dollars as a formula, and refuse ``$\frac{$``."""
    names = [r"$\frac{$", "a$b$c"]
    rows = (["first", "second"],) if draw is label_shares else ()
    FigureCanvasAgg(draw(torch.ones(2, 2), *rows, names, names[0])).draw()


def test_a_dollar_in_a_name_is_a_dollar_in_heatmaps():
    names = [r"$\frac{$", "a$b$c"]
    FigureCanvasAgg(over_rounds(torch.ones(2, 3), names, [1, 2, 3], "title")).draw()
    FigureCanvasAgg(one_round(torch.ones(3, 2), [1], names, 1)).draw()
