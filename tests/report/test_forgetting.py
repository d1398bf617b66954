"""The tables on forgetting, against sums by hand: means, the best and the second, intervals and tests."""

import math

import numpy as np
import pytest

from fl_lightning.report.forgetting import forgetting, tasks
from fl_lightning.report.tables import best_and_second


def test_forgetting_leaves_round_1_out(write_run, study):
    """(.25 + .5) / 2; the drop from the untrained model in round 1 is none."""
    drops = {"forgetting/round": {1: 1.0, 2: 0.25, 3: 0.5}}
    write_run("a", {3: 0.5}, scalars=drops)
    write_run("b", {3: 0.5}, model="FedProx")
    (table,) = forgetting(study(), {"forgetting/round": "round F_t"})
    assert table.rows == [["FedAvg, CrossEntropy", "0.375"]]


def test_tasks_are_scored_at_the_end(write_run, study):
    scalars = {"tasks/forgetting": {2: 0.5, 3: 0.25}, "tasks/model_megabytes": {1: 1.0, 3: 4.0}}
    for seed, value in enumerate((0.5, 0.75)):
        write_run("a", {1: 1.0, 3: value}, metric="tasks/accuracy", scalars=scalars, seed=seed)
    table, tests = tasks(study())
    assert table.rows == [["FedAvg, CrossEntropy", "0.625 ± 0.177", "0.250 ± 0.000", "-", "4.000 ± 0.000"]]
    assert np.isclose(table.records[0]["tasks/accuracy_mean"], 0.625)
    assert tests.rows == [["FedAvg, CrossEntropy", "forgetting", "0.250 ± 0.000", "0.250 to 0.250", "-", "-"]]


def test_ranks_by_hand():
    """Rows 0, 1, 3 are of one condition: the highest twice, and NaN is none; row 2 stands alone."""
    conditions = ["a", "a", "b", "a", "a"]
    columns = {1: [0.5, 0.5, 0.1, math.nan, 0.25], 3: [-1.0, -2.0, math.nan, math.nan, -3.0]}
    best, second = best_and_second(conditions, columns)
    assert best == {(0, 1), (1, 1), (2, 1), (0, 3)}
    assert second == {(4, 1), (1, 3)}


def test_the_least_forgetting_is_bold(write_run, study):
    """F_t counts what is lost; client F_ki is logged negative where something is, and shown positive."""
    for model, lost, kept in (("FedAvg", 0.5, -0.5), ("FedProx", 0.25, -0.75), ("FedNova", 0.375, -0.25)):
        scalars = {"forgetting/round": {2: lost}, "forgetting/client_mean": {2: kept}}
        write_run(model, {2: 0.5}, model=model, scalars=scalars)
    (table,) = forgetting(study(), {"forgetting/round": "round F_t", "forgetting/client_mean": "client F_ki"})
    cells = {name: {table.rows[row][column] for row, column in getattr(table, name)} for name in ("bold", "underlined")}
    assert cells == {"bold": {"0.250"}, "underlined": {"0.375", "0.500"}}
    assert [record["forgetting/client_mean_positive_mean"] for record in table.records] == [0.5, 0.25, 0.75]
    assert "Bold is the least forgetting, underlined the second." in table.note


def test_of_tasks_all_but_the_size_is_ranked(write_run, study):
    for model, lost in (("FedAvg", 0.5), ("FedProx", 0.25)):
        scalars = {"tasks/forgetting": {1: lost}, "tasks/backward_transfer": {1: -lost}, "tasks/model_megabytes": {1: lost}}
        write_run(model, {1: 1 - lost}, metric="tasks/accuracy", model=model, scalars=scalars)
    table, *_ = tasks(study())
    assert table.rows[1] == ["FedProx, CrossEntropy", "0.750", "0.250", "-0.250", "0.250"]
    assert table.bold == {(1, 1), (1, 2), (1, 3)}
    assert table.underlined == {(0, 1), (0, 2), (0, 3)}


def test_forgetting_is_tested_against_the_baseline(write_run, study):
    """Differences of F_t of -1/8, -1/4, -3/8: t is -2 sqrt 3. The interval is 1/4 ± 4.3027 / (8 sqrt 3)."""
    for seed in range(3):
        write_run("a", {2: 0.5}, seed=seed, scalars={"forgetting/round": {2: 0.5}})
        scalars = {"forgetting/round": {2: 0.375 - seed / 8}}
        write_run("b", {2: 0.5}, seed=seed, model="FedProx", scalars=scalars)
    _, tests = forgetting(study(), {"forgetting/round": "round F_t"})
    assert tests.name == "forgetting_tests"
    assert tests.rows == [
        ["FedAvg, CrossEntropy", "round F_t", "0.500 ± 0.000", "0.500 to 0.500", "-", "-"],
        ["FedProx, CrossEntropy", "round F_t", "0.250 ± 0.125", "-0.061 to 0.561", "-0.250 (3)", "0.0742"],
    ]
    # Student's t with two degrees of freedom has the distribution 1/2 + t / (2 sqrt(2 + t^2)).
    assert tests.records[1]["p_holm"] == tests.records[1]["p"] == pytest.approx(1 - math.sqrt(12 / 14))


def test_all_tests_of_forgetting_are_corrected_together(write_run, study):
    for seed in range(2):
        for model, more in (("FedAvg", 0.0), ("FedProx", 0.125 * (seed + 1))):
            scalars = {"tasks/forgetting": {1: 0.25 + more}, "tasks/backward_transfer": {1: -0.25 - more}}
            write_run(model, {1: 0.5}, metric="tasks/accuracy", model=model, seed=seed, scalars=scalars)
    _, tests = tasks(study())
    assert [record["measure"] for record in tests.records] == ["tasks/forgetting", "tasks/backward_transfer"] * 2
    p = 1 - 2 * math.atan(3) / math.pi  # of t = 3, with one degree of freedom
    assert [record["p_holm"] for record in tests.records[2:]] == pytest.approx([2 * p, 2 * p])
    assert "corrected for the 2 tests of this table by Holm's method" in tests.note
