"""``fl-lightning figures``: files at a paper's width, and what is refused."""

import re

import numpy as np
import pytest
import torch
from PIL import Image
from recorded import RecordWriter

from fl_lightning.report.log import Curve, Log
from fl_lightning.report.run_figures import pictures


@pytest.fixture
def run(write_run):
    """With accuracy by class, and heatmaps of three clients in rounds 1 and 2."""
    folder = write_run("a", {1: 0.25, 2: 0.5}, scalars={f"class_accuracy/{name}": {1: 0.25, 2: 0.5} for name in ("cat", "owl")})
    with RecordWriter(folder) as more:
        for round in (1, 2):
            more.add_tensor("clients/cohort", torch.arange(3.0), round)
            for name, shape in (("accuracy_before", 3), ("accuracy_after", (3, 3))):
                more.add_tensor(f"clients/{name}", torch.ones(shape) / 2, round)
    return str(folder)


NAMES = {"accuracy", "class_accuracy_heatmap_round_2", "forgetting_drops_round_2", "forgetting_clients_round_2"}


@pytest.mark.slow
def test_png_svg_and_pdf_at_a_width(run, main, tmp_path):
    """In pixels at 300 dots an inch, and in points of 1/72 inch."""
    for format in ("png", "svg", "pdf"):
        code, out, error = main("figures", run, "out", "--format", format, "--width", "3.25")
        assert (code, out, error) == (0, f"4 figures of {run}: out\n", "")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"{n}.{e}" for n in NAMES for e in ("png", "svg", "pdf")}
    for name in NAMES:
        assert Image.open(tmp_path / "out" / f"{name}.png").width == 975
        assert re.search(r'<svg [^>]*width="234pt"', (tmp_path / "out" / f"{name}.svg").read_text())
        assert re.search(rb"/MediaBox \[ ?0 0 234 ", (tmp_path / "out" / f"{name}.pdf").read_bytes())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["RUN"], "OUT is missing"),
        (["none", "out"], "RUN is none, which is not a folder"),
        (["empty", "out"], "which has no run"),
        (["RUN", "file"], "OUT is file, which is a file or is inside one"),
        (["RUN", "file/x"], "OUT is file/x, which is a file or is inside one"),
        (["RUN", "out", "--format", "gif"], "format is gif, must be one of png, svg or pdf"),
        (["RUN", "out", "--width", "1"], "--width is 1.0, must be between 2 and 40"),
        (["RUN", "out", "--width", "nan"], "width is nan, must be a finite number"),
        (["RUN", "out", "--rounds", "[2,7]"], "--rounds has 7, but RUN has no heatmap of that round: there are 1, 2"),
    ],
)
def test_what_is_refused_in_one_line(run, main, tmp_path, options, said):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    code, _, error = main("figures", *(run if option == "RUN" else option for option in options))
    assert (code, error.count("\n")) == (1, 1)
    assert said in error
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "file").read_text() == "x"


def test_rounds_are_chosen(run, main, tmp_path):
    """Of what has a heatmap for each round; what shows all rounds is drawn once."""
    assert main("figures", run, "out", "--rounds", "[2,1,1]", "--format", "png")[0] == 0
    drawn = {path.stem for path in (tmp_path / "out").iterdir()}
    assert drawn == NAMES | {"forgetting_clients_round_1"}


def test_of_a_run_that_goes_on_all_curves_are_drawn(write_run, main, tmp_path):
    scalars = {"forgetting/round": {1: 0.5, 2: 0.25}, "communication/total_up": {1: 1e6, 2: 2e6}}
    scalars["communication/total_down"] = scalars["communication/total_up"]
    folder = write_run("a", {1: 0.25, 2: 0.5}, rounds=100, scalars=scalars)
    assert main("figures", str(folder), "out", "--format", "svg")[0] == 0
    names = {"accuracy", "forgetting_round_over_rounds", "forgetting_round", "communication"}
    assert {path.stem for path in (tmp_path / "out").iterdir()} == names


def test_numbers_of_the_pictures():
    """Values by hand: a class that comes in round 3 is unknown before, a gain is no drop, nor is one from the untrained model.
    Task 2 builds on one of client 4."""
    nan = float("nan")
    cat = Curve(np.array([0, 1, 2, 3]), np.array([1.0, 0.75, 0.25, 0.5]))
    curves = {"cat": cat, "owl": Curve(np.array([3]), np.array([1.0]))}
    counts, shares = [[2, 0], [1, 1]], [[1, 0], [0.5, 0.5]]
    tensors = {
        "clients/personal_accuracy": [0.5, nan, 1.0],
        "clients/round_cohort": [3],
        "label_counts/first_clients": [[3, 1], [4, 4]],
        "label_counts/clients": [[1, 3]],
        "tasks/table": [[0.75, nan], [0.25, 0.5]],
        "tasks/class_table": [[0.75, nan], [0.25, 0.5]],
        "tasks/counts": counts,
        "tasks/class_task": [0, 1],
        "tasks/class_rounds": [[1, 2], [nan, nan]],
        "tasks/attention_of_client_12": [[nan], [-0.25]],
        "tasks/foreign_of_client_12": [[4, 0]],
    }
    log = Log(
        {f"class_accuracy/{name}": curve for name, curve in curves.items()},
        tensors={name: {3: np.array(values, np.float32)} for name, values in tensors.items()},
        sessions=[np.array([[3, 0]])],
    )
    drawn = {picture.tag: picture.draw(picture.chosen([])[0]) for picture in pictures(log)}
    heatmaps = {
        "class_accuracy/heatmap": [[1.0, 0.75, 0.25, 0.5], [nan, nan, nan, 1.0]],
        "forgetting/drops": [[0.5, 0.0], [nan, nan]],
        "tasks/accuracy_table": [[0.75, nan], [0.25, 0.5]],
        "tasks/confusion": shares,
        "tasks/classes": [[0.0, 0.5], [nan, 0.0]],
        "tasks/attention/client_12": [[nan], [-1.0]],  # in units of the largest
    }
    for tag, values in heatmaps.items():
        (image,) = drawn[tag].axes[0].images
        assert np.array_equal(image.get_array().filled(nan), values, equal_nan=True), tag
    assert drawn.keys() - heatmaps.keys() == {"personal/distribution", "label_counts/partition", "label_counts/cohort"}
    rows = [label.get_text() for label in drawn["tasks/classes"].axes[0].get_yticklabels()]
    assert rows == ["cat (rounds 1 to 2), best 0.75", "owl, best 0.50"]
    rows = [label.get_text() for label in drawn["label_counts/cohort"].axes[0].get_yticklabels()]
    assert rows == ["client 3", "cohort", "all clients"]
    assert [bar.get_width() for bar in drawn["label_counts/cohort"].axes[0].patches[:3]] == [0.25, 0.25, 0.5]
    assert drawn["tasks/attention/client_12"].axes[0].get_xticklabels()[0].get_text() == "1 of client 4"


def test_no_drop_is_drawn_where_the_test_set_grew():
    """A domain arrived after round 2."""
    cat = Curve(np.array([1, 2, 3, 4]), np.array([0.75, 1.0, 0.5, 0.375]))
    log = Log(
        {"class_accuracy/cat": cat}, tensors={"tasks/ahead": {0: np.zeros(2), 2: np.zeros(2)}}, sessions=[np.array([[4, 0]])]
    )
    (image,) = next(p for p in pictures(log) if p.tag == "forgetting/drops").draw(4).axes[0].images
    assert np.array_equal(image.get_array().filled(np.nan), [[0.0, np.nan, 0.125]], equal_nan=True)


# Three classes in two tasks; of each tensor a shape that does not fit the others, and what is said of it.
_TASKS = {
    "label_counts/first_clients": [[3, 4, 1], [9, 9, 9]],
    "label_counts/clients": [[3, 4, 1]],
    "tasks/table": [[0.5, 0.25], [1.0, 0.0]],
    "tasks/class_table": [[0.5, 0.25, 0.0], [1.0, 0.0, 0.0]],
    "tasks/counts": np.eye(3),
    "tasks/class_task": [0, 1, 1],
    "tasks/class_rounds": [[1, 2], [2, 3], [2, 3]],
    "tasks/attention_of_client_3": [[0.5, 0.25]],
    "tasks/foreign_of_client_3": [[8, 0], [8, 1]],
}
_DAMAGE = {
    "label_counts/first_clients": (np.ones((2, 2)), "label_counts/clients of round 2 has shape (1, 3), not (1, 2)"),
    "label_counts/clients": (np.ones((1, 4)), "label_counts/clients of round 2 has shape (1, 4), not (1, 3)"),
    "tasks/table": (np.ones((3, 2)), "tasks/table of round 2 has shape (3, 2), not (2, 2)"),
    "tasks/counts": (np.eye(2), "tasks/class_task of round 2 has shape (3,), not (2,)"),
    "tasks/class_task": ([0, 1, 2], "tasks/class_task of round 2 names a task that is none of the 2"),
    "tasks/class_rounds": (np.ones((4, 2)), "tasks/class_rounds of round 2 has shape (4, 2), not (3, 2)"),
    "tasks/class_table": (np.ones((0, 3)), "tasks/class_table of round 2 has shape (0, 3), not (1, 3)"),
    "tasks/foreign_of_client_3": (np.ones((1, 2)), "tasks/foreign_of_client_3 of round 2 has shape (1, 2), not (2, 2)"),
}


@pytest.mark.parametrize("damaged", _DAMAGE)
def test_tensors_that_do_not_fit_each_other_are_named(damaged):
    """By each picture that needs them; the others are drawn."""
    shown = {name: np.array(_DAMAGE[name][0] if name == damaged else values) for name, values in _TASKS.items()}
    log = Log(tensors={name: {2: values} for name, values in ({"clients/round_cohort": np.array([3])} | shown).items()})
    log.sessions = [np.array([[2, 0]])]
    said = []
    for picture in pictures(log):
        try:
            picture.draw(2)
        except ValueError as error:
            said.append(str(error))
    assert said == [_DAMAGE[damaged][1]] * (2 if damaged == "tasks/table" else 1)


def test_a_damaged_run_is_named(write_run, main, tmp_path):
    """In one line at the end, with both pictures that the table is in; the curve and the labels are drawn."""
    folder = write_run("a", {1: 0.25, 2: 0.5})
    with RecordWriter(folder) as more:
        for name in ("label_counts/first_clients", "tasks/counts", "tasks/class_task"):
            more.add_tensor(name, _TASKS[name], 2)
        more.add_tensor("tasks/table", np.ones((3, 2)), 2)
    code, _, error = main("figures", str(folder), "out", "--format", "svg")
    assert (code, error.count("\n")) == (1, 1)
    said = "since tasks/table of round 2 has shape (3, 2), not (2, 2)"
    drawn = f"all is drawn without tasks/accuracy_table, {said} and without tasks/confusion, {said}"
    assert f"{folder / 'record.jsonl'} is damaged, {drawn}: put it back from a copy" in error
    assert {path.stem for path in (tmp_path / "out").iterdir()} == {"accuracy", "label_counts_partition_round_2"}


@pytest.mark.parametrize(("name", "shape"), [("class_rounds", (3, 3)), ("foreign_of_client_3", (2, 1)), ("counts", (3, 0))])
def test_tensors_of_another_kind_end_the_reading(write_run, main, name, shape):
    """As any line that no run writes; a column more or less is found whatever else was logged."""
    folder = write_run("a", {1: 0.25, 2: 0.5})
    with RecordWriter(folder) as more:
        more.add_tensor(f"tasks/{name}", np.ones(shape), 3)
    code, _, error = main("figures", str(folder), "out", "--format", "svg")
    assert (code, error) == (0, f"{folder / 'record.jsonl'}: cut off or damaged, read up to round 2\n")


def test_of_several_runs_one_must_be_chosen(write_run, main):
    folders = [write_run(name, {1: 0.5}) for name in "ab"]
    code, _, error = main("figures", str(folders[0].parents[1]), "out")
    assert code == 1
    assert f"which holds 2 runs: give one of them, such as {folders[0]}" in error
