"""What is drawn, read back from the axes."""

import numpy as np
import pytest
import torch
from legible import assert_legible
from matplotlib.figure import Figure
from recorded import RecordWriter

from fl_lightning.report import figures, run_figures
from fl_lightning.report.commands import report
from fl_lightning.report.log import Curve
from fl_lightning.report.sections import sections
from fl_lightning.report.study import common_curve


@pytest.fixture
def axes():
    return Figure().subplots()


def test_a_curve_is_the_mean_over_seeds_with_a_band_of_one_deviation(axes):
    """Rounds 2 and 4 are in both curves; of two values the deviation is their distance over the square root of 2."""
    curves = [Curve(np.array([2, 3, 4]), np.array([0.25, 0.9, 0.5])), Curve(np.array([1, 2, 4]), np.array([0.9, 0.75, 0.5]))]
    figures.draw_band(axes, *common_curve(curves), "red", "FedAvg")
    ((line,), (band,)) = axes.lines, axes.collections
    assert line.get_xdata().tolist() == [2, 4]
    assert line.get_ydata().tolist() == [0.5, 0.5]
    edges = band.get_paths()[0].vertices[:, 1]
    assert (edges.min(), edges.max()) == pytest.approx((0.5 - 0.5 / np.sqrt(2), 0.5 + 0.5 / np.sqrt(2)))


def test_seeds_without_a_common_round_have_no_curve(write_run, study):
    """One run ended by itself after round 1, where the other was not evaluated; the other figures are drawn."""
    for seed, curve in enumerate(({1: 0.25}, {2: 0.5})):
        write_run("a", curve, seed=seed, rounds=2, results={"rounds": seed + 1})
    drawn = {drawing.name: drawing.figure for section in sections(study(), []) for drawing in section.drawings}
    assert drawn["accuracy"].axes[0].lines[0].get_xdata().tolist() == []
    for figure in drawn.values():
        figure.draw_without_rendering()


def test_ticks_of_rounds_are_whole_numbers():
    """Steps of 2.5 fit best into 12 rounds; on an axis of bytes they stay."""
    for name, whole in (("round", True), ("MB", False)):
        figure = figures.by_condition({"": [None]}, lambda axes, group: axes.plot([0, 12], [0, 1], label="a"), name, "accuracy")
        ticks = figure.axes[0].get_xticks()
        assert all(tick == round(tick) for tick in ticks) == whole, ticks


def test_one_seed_has_no_band(axes):
    figures.draw_band(axes, np.array([1, 2]), np.array([[0.25, 0.5]]), "red", "FedAvg")
    assert len(axes.collections) == 0


def test_the_band_of_accuracies_ends_at_0_and_1(axes):
    """Round 1: 0 and .5, .25 less .35; round 2: .75 and 1, .875 plus .18. Of what is no share the band is whole."""
    rounds = np.array([1, 2])
    for scale, ends in ((1.0, (0.0, 1.0)), (10.0, (2.5 - 3.5355339, 8.75 + 1.7677670))):
        curves = [Curve(rounds, scale * np.array(values)) for values in ([0.0, 0.75], [0.5, 1.0])]
        figures.draw_band(axes, *common_curve(curves), "red", "FedAvg")
        drawn = axes.collections[-1].get_paths()[0].vertices[:, 1]
        assert (drawn.min(), drawn.max()) == pytest.approx(ends)


def test_long_curves_are_thinned_and_keep_their_end(axes):
    figures.draw_band(axes, np.arange(1, 4001), np.arange(4000.0)[None], "red", "FedAvg")
    rounds = axes.lines[0].get_xdata()
    assert (len(rounds), rounds[0], rounds[-1]) == (400, 1, 4000)


def test_a_distribution_counts_what_is_at_most_a_value(axes):
    """One at .1, three at .2, none at .3: shares 1/4, 1, 1."""
    figures.draw_distribution(axes, np.array([0.2, 0.1, 0.3]), np.array([3.0, 1.0, 0.0]), "red", "FedAvg")
    (line,) = axes.lines
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([0.1, 0.2, 0.3], [0.25, 1.0, 1.0])


def test_sections_draw_what_was_logged(write_run, study):
    """Panels by condition, an unfinished method dashed, the ablation's points, and forgetting without round 1."""
    for alpha, value in ((0.1, 0.25), (1.0, 0.5)):
        drops = {"forgetting/round": {1: 1.0, 2: 0.25, 3: 0.125}}
        write_run(f"a_{alpha}", {2: 0.125, 3: value}, data__partition__alpha=alpha, scalars=drops)
    write_run("b", {2: 0.75}, rounds=3, model="FedProx", data__partition__alpha=1.0)
    drawn = {drawing.name: drawing.figure for section in sections(study(), []) for drawing in section.drawings}
    assert list(drawn) == ["accuracy", "ablation_alpha", "forgetting_round_over_rounds", "forgetting_round"]
    first, second = drawn["accuracy"].axes
    assert (first.get_title(), second.get_title()) == ("alpha 0.1", "alpha 1")
    assert [line.get_ydata().tolist() for line in second.lines] == [[0.125, 0.5], [0.75]]
    assert [line.get_linestyle() for line in second.lines] == ["-", "--"]
    assert second.lines[1].get_label() == "FedProx, CrossEntropy (not finished)"
    points = drawn["ablation_alpha"].axes[0].lines[0]
    assert (points.get_xdata().tolist(), points.get_ydata().tolist()) == ([0.1, 1.0], [0.1875, 0.3125])
    assert drawn["forgetting_round_over_rounds"].axes[0].lines[0].get_ydata().tolist() == [1.0, 0.25, 0.125]
    assert drawn["forgetting_round"].axes[0].lines[0].get_xdata().tolist() == [0.125, 0.25]


def test_a_mean_over_some_of_the_seeds_is_not_drawn(write_run, study):
    """As in tables: of three seeds of a method one has measured neither forgetting nor bytes."""
    measured = {"forgetting/round": {1: 0.5, 2: 0.25}}
    measured |= {f"communication/total_{way}": {1: 3.0, 2: 6.0} for way in ("up", "down")}
    for seed in range(3):
        write_run("a", {1: 0.5, 2: 0.75}, seed=seed, scalars=measured if seed else {})
        write_run("b", {1: 0.5, 2: 0.75}, seed=seed, scalars=measured, model="FedProx")
        write_run("c", {2: 0.5}, seed=seed, scalars=measured if seed else {}, data__partition__alpha=1.0)
    drawn = [drawing for section in sections(study(), []) for drawing in section.drawings]
    spread = {drawing.name: drawing for drawing in drawn if not drawing.name.startswith(("accuracy", "ablation"))}
    assert list(spread) == ["forgetting_round_over_rounds", "forgetting_round", "communication"]
    for drawing in spread.values():
        (axes,) = drawing.figure.axes  # none for alpha 1
        assert [line.get_label() for line in axes.lines] == ["FedProx, CrossEntropy"]
        assert "Runs behind each line: 3." in drawing.caption


def test_a_run_of_one_round_has_an_empty_distribution(write_run, study):
    """Round 1 forgets nothing learned: it is a point of the curve, and of no distribution."""
    write_run("a", {1: 0.5}, scalars={"forgetting/round": {1: 0.25}})
    drawn = {drawing.name: drawing.figure for section in sections(study(), []) for drawing in section.drawings}
    assert drawn["forgetting_round_over_rounds"].axes[0].lines[0].get_ydata().tolist() == [0.25]
    assert len(drawn["forgetting_round"].axes[0].lines) == 0


@pytest.mark.parametrize(("more", "drawn"), [({}, [0.5, 0.25]), ({"forgetting/round": {36: 0.0, 37: 1.0}}, [0.0, 1.0])])
def test_round_forgetting_is_that_of_most_evaluations(write_run, study, more, drawn):
    """Not of the last round, five after the evaluation before it; of as many values those with the smaller gap."""
    write_run("a", {35: 0.5}, scalars={"forgetting/every_10": {20: 0.5, 30: 0.25}, "forgetting/every_5": {35: 0.125}} | more)
    figures = {drawing.name: drawing.figure for section in sections(study(), []) for drawing in section.drawings}
    (curve,) = (figure for name, figure in figures.items() if name.endswith("_over_rounds"))
    assert curve.axes[0].lines[0].get_ydata().tolist() == drawn


def test_forgetting_of_personal_models_is_drawn_against_where_each_one_starts(write_run, study):
    """The accuracy before is a matrix there, (.25 .5; .75 1): less 1 after the fit the difference is (.75 .5; .25 0)."""
    folder = write_run("a", {2: 0.5}, model="FedPer")
    with RecordWriter(folder) as more:
        more.add_tensor("clients/cohort", torch.arange(2.0), 2)
        more.add_tensor("clients/accuracy_before", torch.tensor([[0.25, 0.5], [0.75, 1.0]]), 2)
        more.add_tensor("clients/accuracy_after", torch.ones(2, 2), 2)
    folder = write_run("b", {2: 0.5})  # whose clients start from one model: two panels next to three
    with RecordWriter(folder) as more:
        more.add_tensor("clients/cohort", torch.arange(2.0), 2)
        more.add_tensor("clients/accuracy_before", torch.ones(2), 2)
        more.add_tensor("clients/accuracy_after", torch.ones(2, 2), 2)
    with figures.drawing_style(6.75):
        drawn = {drawing.name: drawing.figure for section in sections(study(), []) for drawing in section.drawings}
    axes = [one for one in drawn["who_forgets_whose_data_2"].axes if one.get_title()]
    labels = ["FedAvg"] * 2 + ["FedPer"] * 3
    assert [one.get_title().partition(",")[0] for one in axes] == labels
    before, _, forgotten = (one.images[0].get_array() for one in axes[2:])
    assert before.tolist() == [[0.25, 0.5], [0.75, 1.0]]
    assert forgotten[:2, :2].tolist() == [[-0.75, -0.5], [-0.25, 0.0]]


def test_heatmaps_of_many_methods_have_several_pages(write_run, study, monkeypatch):
    """At the width of a column a method takes more than a third of a page: four have two pages or more, each drawn once."""
    draw, labels = run_figures.figures.client_forgetting_picture, []
    monkeypatch.setattr(run_figures.figures, "client_forgetting_picture", lambda *how: (labels.append(how[-2]), draw(*how)))
    for mu in (0.1, 0.2, 0.3, 0.4):
        folder = write_run(f"mu_{mu}", {2: 0.5}, model="FedProx", model__mu=mu)
        with RecordWriter(folder) as more:
            more.add_tensor("clients/cohort", torch.arange(2.0), 2)
            more.add_tensor("clients/accuracy_before", torch.ones(2), 2)
            more.add_tensor("clients/accuracy_after", torch.full((2, 2), mu), 2)
    with figures.drawing_style(3.25):
        of_clients = [one for section in sections(study(), []) for one in section.drawings if "whose" in one.name]
    assert [one.name for one in of_clients] == [f"who_forgets_whose_data_2_{page}" for page in range(1, len(of_clients) + 1)]
    assert len(of_clients) > 1
    assert len(labels) == 4
    assert all(one.figure.get_figheight() < 9 for one in of_clients)
    shown = [axes.images[0].get_array()[1, 0] for one in of_clients for axes in one.figure.axes[::2] if axes.images]
    assert sorted(shown) == pytest.approx([0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize("width", [3.25, pytest.param(6.75, marks=pytest.mark.slow)])
def test_a_cohort_of_ten_is_legible_at_the_width_of_a_paper(write_run, study, width):
    """Every text of every figure is 7 points or larger and within the figure, and no two labels of an axis touch."""
    changes = {"one": {}, "two": {}, "three": {"data__partition__alpha": 1.0, "model__local_steps": 100}}
    clients = [4, 17, 23, 38, 51, 64, 77, 80, 92, 99]
    for name, seed in (("one", 0), ("two", 1), ("three", 0)):
        curves = {f"class_accuracy/{label}": {1: 0.25, 2: 0.5} for label in range(10)}
        curves |= {"forgetting/round": {1: 0.5, 2: 0.25}, "forgetting/client_mean": {2: -0.5}}
        curves |= {"communication/total_up": {1: 1e6, 2: 2e6}, "communication/total_down": {1: 1e6, 2: 2e6}}
        folder = write_run(name, {1: 0.25, 2: 0.5}, seed=seed, model__optimizer__lr=0.1 + seed, scalars=curves, **changes[name])
        with RecordWriter(folder) as more:
            more.add_tensor("clients/cohort", torch.tensor(clients), 2)
            more.add_tensor("clients/accuracy_before", torch.ones(10), 2)
            more.add_tensor("clients/accuracy_after", torch.zeros(10, 10), 2)
            more.add_tensor("clients/class_cohort", torch.tensor(clients), 2)
            more.add_tensor("clients/class_accuracy", torch.ones(12, 10), 2)
    with figures.drawing_style(width):
        drawn = [drawing.figure for section in sections(study(), []) for drawing in section.drawings]
        assert len(drawn) == 9
        for figure in drawn:
            assert figure.get_figwidth() == width
            assert_legible(figure)


def test_the_plane_of_new_knowledge_against_old(write_run, study):
    """A point a method: the last test accuracy across, the last accuracy on the reference set up; .9 before, nets between."""
    for seed, new, old in ((0, 0.5, 0.25), (1, 0.7, 0.35)):
        curves = {
            "reference/cats/accuracy": {0: 0.9, 2: old},
            "reference/cats/accuracy_before": {0: 0.9},
            "wise_ft/1/test": {2: new},
            "wise_ft/1/cats": {2: old},
            "wise_ft/0.5/test": {2: 0.4},
            "wise_ft/0.5/cats": {2: 0.8},
        }
        write_run("a", {2: new}, seed=seed, scalars=curves)
    write_run("b", {2: 0.9}, model="FedProx")
    (section,) = (one for one in sections(study(), []) if one.title == "New and old knowledge")
    (axes,) = section.drawings[0].figure.axes
    before, point, line = axes.lines[0], axes.lines[1], axes.lines[-1]
    assert before.get_ydata() == pytest.approx([0.9, 0.9])
    assert (*point.get_xdata(), *point.get_ydata()) == pytest.approx((0.6, 0.3))
    assert line.get_xydata() == pytest.approx(np.array([[0.4, 0.8], [0.6, 0.3]]))
    (table,) = section.tables
    assert table.rows[0][1:] == ["0.600 ± 0.141", "0.300 ± 0.071", "0.900 ± 0.000", "0.600 ± 0.071"]
    assert table.columns[-1] == "forgetting of cats"
    assert len(table.rows) == 1


def test_classes_that_arrive_in_another_order_are_not_averaged(write_run, tmp_path):
    for seed, names in enumerate((["cat", "dog"], ["dog", "cat"])):
        first, second = (f"class_accuracy/{name}" for name in names)
        write_run("a", {1: 0.5, 2: 0.5}, seed=seed, scalars={first: {1: 1.0, 2: 0.5}, second: {2: 0.75}})
    report([tmp_path / "runs"], out=tmp_path / "report")
    page = (tmp_path / "report" / "report.md").read_text()
    assert "one run of each method, as classes arrive in another order with another seed. Runs behind each point: 1." in page


def test_more_than_ten_methods_have_different_colours(write_run, study):
    for number in range(25):
        write_run(str(number), {1: 0.5}, model=f"Own{number}")
    groups = study().groups
    palette = figures.Palette(groups)
    assert len({palette[group] for group in groups}) == 25


def test_a_label_that_begins_with_an_underscore_is_in_the_legend(axes):
    """As that of a class in a script does; matplotlib would leave it out."""
    for label in ("__main__.MyMethod", "FedAvg"):
        figures.draw_band(axes, np.array([1, 2]), np.array([[0.5, 0.6]]), "red", label)
    figures.legend_below(axes.figure, [axes])
    (legend,) = axes.figure.legends
    assert [text.get_text().strip() for text in legend.get_texts()] == ["__main__.MyMethod", "FedAvg"]
