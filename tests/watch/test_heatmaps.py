"""Heatmaps of a run in a round, against numbers by hand."""

from pathlib import Path

import numpy as np
import pytest

from fl_lightning.report.log import Curve, Log, thinned
from fl_lightning.report.runs import Run, read_run
from fl_lightning.watch.heatmaps import heatmap, measured_rounds

_AFTER = [[0.75, 0.25], [0.5, 1.0]]


@pytest.fixture
def run(write_run) -> Run:
    """Clients 3 and 8 in round 2, in round 4 without the accuracy after; by class in round 2; two classes in rounds 1, 2, 4."""
    tensors = {
        "clients/cohort": {2: [3, 8], 4: [1, 2]},
        "clients/accuracy_before": {2: [0.5, 0.5], 4: [0.5, 0.5]},
        "clients/accuracy_after": {2: _AFTER},
        "clients/class_cohort": {2: [8]},
        "clients/class_accuracy": {2: [[0.5, 0.0], [1.0, 0.0], [0.75, 0.25]]},
    }
    scalars = {"class_accuracy/cat": {1: 0.0, 2: 0.5, 4: 1.0}, "class_accuracy/a\nb": {1: 0.25, 2: 0.5, 4: 0.75, 5: 1.0}}
    return read_run(write_run("a", scalars, tensors, rounds=9))


def test_rounds_of_which_all_is_written(run):
    assert measured_rounds(run) == {"forgetting": [2], "after": [2], "by_class": [2], "classes": [1, 2, 4, 5]}


def test_forgetting_by_the_local_fits(run):
    """Before less after, a column a client whose data it is: 0.5 - 0.75 and so on."""
    shown = heatmap(run, "forgetting", 2)
    assert shown.values.tolist() == [[-0.25, 0.25], [0.0, -0.5]]
    assert (shown.rows, shown.columns, shown.clients) == (["3", "8"], ["3", "8"], [3, 8])
    assert heatmap(run, "after", 2).values.tolist() == _AFTER


def test_forgetting_where_clients_keep_personal_models(write_run):
    """Each has a model before the fit."""
    tensors = {
        "clients/cohort": {1: [0, 1]},
        "clients/accuracy_before": {1: [[0.75, 0.0], [0.0, 1.0]]},
        "clients/accuracy_after": {1: _AFTER},
    }
    shown = heatmap(read_run(write_run("a", {}, tensors, rounds=1)), "forgetting", 1)
    assert shown.values.tolist() == [[0.0, -0.25], [-0.5, 0.0]]


def test_parts_that_do_not_belong_together_are_left_out(write_run):
    tensors = {
        "clients/cohort": {1: [0, 1]},
        "clients/accuracy_before": {1: [0.5, 0.5, 0.5]},
        "clients/accuracy_after": {1: _AFTER},
        "clients/class_cohort": {1: [0, 1]},
        "clients/class_accuracy": {1: _AFTER},
    }
    assert measured_rounds(read_run(write_run("a", {}, tensors, rounds=1))) == {}


def test_one_round_by_class(run):
    shown = heatmap(run, "by_class", 2)
    assert (shown.rows, shown.columns, shown.clients) == (["global before", "client 8", "global after"], ["cat", "a\\nb"], [8])
    assert shown.values.tolist() == [[0.5, 0.0], [1.0, 0.0], [0.75, 0.25]]


def test_classes_over_rounds(run):
    """Up to the round that is asked for."""
    shown = heatmap(run, "classes", 2)
    assert (shown.rows, shown.columns, shown.clients) == (["cat", "a\\nb"], ["1", "2"], None)
    assert shown.values.tolist() == [[0.0, 0.5], [0.25, 0.5]]
    assert np.array_equal(heatmap(run, "classes", 5).values[:, 3], [np.nan, 1.0], equal_nan=True)  # the first is missing


def test_a_class_that_is_measured_later_keeps_its_name():
    """Its scalar comes last in the record, and its label first."""
    scalars = {name: Curve(np.array([round]), np.array([value])) for name, round, value in (("b", 1, 0.5), ("a", 2, 0.25))}
    log = Log({f"class_accuracy/{name}": curve for name, curve in scalars.items()}, classes=["a", "b"])
    shown = heatmap(Run(Path(), {}, {}, log), "classes", 2)
    assert shown.rows == ["a", "b"]
    assert np.array_equal(shown.values, [[np.nan, 0.25], [0.5, np.nan]], equal_nan=True)


def test_who_took_part_over_rounds(write_run):
    """Logged where it changes: client 2 alone in rounds 2 and 3, nobody in round 4."""
    cohorts = {"clients/round_cohort": {1: [0, 2], 2: [2], 4: []}}
    run = read_run(write_run("a", {"train/loss": {5: 1.0}, "class_accuracy/cat": {0: 0.5, 3: 1.0}}, cohorts, rounds=9))
    assert measured_rounds(run)["cohorts"] == [1, 2, 3, 4, 5]
    shown = heatmap(run, "cohorts", 4)
    assert (shown.rows, shown.columns, shown.clients) == (["0", "1", "2"], ["1", "2", "3", "4"], [])
    assert shown.values.tolist() == [[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]]
    assert [heatmap(run, "classes", round).clients for round in (0, 3)] == [None, [2]]


def test_many_clients_share_rows(write_run):
    """121 clients in 41 rows: three in each but the last, which has one."""
    run = read_run(write_run("a", {}, {"clients/round_cohort": {1: [0, 2, 120]}}, rounds=9))
    shown = heatmap(run, "cohorts", 1)
    assert (shown.rows[0], shown.rows[1], shown.rows[-1], len(shown.rows)) == ("0 to 2", "3 to 5", "120", 41)
    assert shown.values[:, 0].tolist() == [2 / 3, *[0] * 39, 1]


@pytest.mark.parametrize(
    ("kind", "round"), [("cohorts", 1), ("forgetting", 4), ("forgetting", -1), ("nothing", 2), ("classes", 3)]
)
def test_what_was_not_measured(run, kind, round):
    with pytest.raises(KeyError):
        heatmap(run, kind, round)


@pytest.mark.parametrize(
    ("count", "most", "kept"), [(0, 3, []), (1, 3, [0]), (3, 3, [0, 1, 2]), (5, 3, [0, 2, 4]), (101, 2, [0, 100])]
)
def test_thinned(count, most, kept):
    assert np.array_equal(thinned(count, most), kept)
