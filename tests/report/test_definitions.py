"""Definitions of forgetting computed from records."""

import csv
import math
import re

import pytest
import torch
from recorded import RecordWriter
from written_pages import DOCS

from fl_lightning.forgetting import DEFINITIONS
from fl_lightning.report.commands import report

CLASSES = {"class_accuracy/cat": {0: 1.0, 1: 0.5, 2: 0.75, 4: 0.25}, "class_accuracy/dog": {0: 1.0, 1: 0.25, 2: 0.0, 4: 0.5}}
BEFORE = [0.5, 0.5]
TABLES = [[[0.5, math.nan], [0.25, 1.0]], [[1.0, math.nan], [0.25, 0.5]]]  # two clients: drops of 1/4 and 3/4


@pytest.fixture
def run_of_all_kinds(write_run, tmp_path):
    folder = write_run("all", {1: 0.25, 4: 0.5}, scalars=CLASSES)
    with RecordWriter(folder) as more:
        for round, after in ((1, [[0.5, 0.0], [0.0, 0.5]]), (2, [[1.0, 0.25], [0.5, 1.0]]), (4, [[1.0, 0.5], [0.25, 1.0]])):
            more.add_tensor("clients/cohort", [0, 1], round)
            more.add_tensor("clients/accuracy_before", BEFORE, round)
            more.add_tensor("clients/accuracy_after", after, round)
            more.add_tensor("clients/local_change", [[0.5, -0.25], [-0.75, -0.5]], round)
            more.add_tensor("clients/loss_increase", [[0.5, 0.25 * round]], round)
        more.add_tensor("tasks/table", [[0.75, math.nan], [0.25, 0.75]], 4)
        more.add_tensor("tasks/client_tables", TABLES, 4)
    return tmp_path / "runs"


def cells(out):
    with open(out / "tables" / "forgetting_by_definition.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_classes_that_arrive(write_run, no_pictures, tmp_path):
    """The dog comes in round 4, with the cat at .25 after .75: a drop of 1/2, of (0, 1/2) from round to round."""
    write_run("all", {1: 0.25, 4: 0.5}, scalars={**CLASSES, "class_accuracy/dog": {4: 0.5}})
    report([tmp_path / "runs"], out=tmp_path / "report", forgetting="flashback,flashback_round")
    (row,) = cells(tmp_path / "report")
    assert [float(row[f"{name}_mean"]) for name in ("flashback", "flashback_round")] == [0.5, 0.25]
    assert "flashback: forgetting from the best F, last" in (tmp_path / "report" / "report.md").read_text()


def test_every_kind_of_matrix(run_of_all_kinds, no_pictures, tmp_path):
    """Clients: 1/8 in rounds 2 and 4, round 1 left out; worst 1/4 in both. Classes: from .75 to .25 and a gain from .25 to .5,
    the untrained round left out; F_t of (0, 1/4), (1/2, 0).
    Tasks: the mean over clients, whose accuracies at the end are (1/4, 1) and (1/4, 1/2).
    F_kt (1/8, 5/8); losses (1/2 + 1/2) / 2 in round 2, (1/2 + 1) / 2 in round 4."""
    names = "client,client_worst,flashback,flashback_round,chaudhry,gem,mammoth,fed_mammoth"
    names += ",flashback_local,fedreg,average_accuracy"
    report([run_of_all_kinds], out=tmp_path / "report", forgetting=names)
    (row,) = cells(tmp_path / "report")
    found = {name: float(row[f"{name}_mean"]) for name in names.split(",")}
    assert found == {
        "client": 0.125,
        "client_worst": 0.25,
        "flashback": pytest.approx((0.5 - 0.25) / 2),
        "flashback_round": pytest.approx((0.125 + 0.25) / 2),
        "chaudhry": 0.5,
        "gem": 0.5,
        "mammoth": 0.5,
        "fed_mammoth": 0.25,
        "flashback_local": 0.375,
        "fedreg": 0.625,
        "average_accuracy": 0.5,
    }
    assert "Aljahdali et al., Flashback, equation 2" in (tmp_path / "report" / "report.md").read_text()


def test_the_table_of_a_global_model_that_is_cut_off(write_run, tmp_path):
    """Two of three tasks are over: a drop of 1/2."""
    folder = write_run("tasks", {1: 0.25}, metric="tasks/accuracy")
    with RecordWriter(folder) as more:
        more.add_tensor("tasks/table", [[0.75, math.nan, math.nan], [0.25, 1.0, math.nan], [math.nan] * 3], 1)
    report([tmp_path / "runs"], out=tmp_path / "report", forgetting="chaudhry")
    assert [float(row["chaudhry_mean"]) for row in cells(tmp_path / "report")] == [0.5]


def test_forward_transfer_of_a_run(write_run, tmp_path):
    """((.5 - .25) + (.25 - .5)) / 2, and of the run that ended a task earlier .5 - .25."""
    nan = math.nan
    for name, rows in (("FedAvg", 3), ("FedProx", 2)):
        folder = write_run(name, {1: 0.25}, metric="tasks/accuracy", model=name)
        with RecordWriter(folder) as more:
            more.add_tensor("tasks/ahead", [0.0, 0.25, 0.5], 0)
            more.add_tensor("tasks/ahead", [nan, 0.5, nan], 1)
            more.add_tensor("tasks/ahead", [nan, nan, 0.25], 2)
            table = [[0.75, nan, nan], [0.25, 1.0, nan], [0.5, 0.5, 0.5]]
            more.add_tensor("tasks/table", [*table[:rows], *[[nan] * 3] * (3 - rows)], 3)
    report([tmp_path / "runs"], out=tmp_path / "report", forgetting="forward_transfer,gem")
    assert sorted(float(row["forward_transfer_mean"]) for row in cells(tmp_path / "report")) == [0.0, 0.25]


def test_a_test_set_that_grows_is_no_forgetting(write_run, tmp_path):
    """A domain arrives after round 2: of the drops 1/2 and 1/8 only the second is of one test set."""
    folder = write_run("a", {1: 0.5}, scalars={"class_accuracy/cat": {1: 0.75, 2: 1.0, 3: 0.5, 4: 0.375}})
    with RecordWriter(folder) as more:
        more.add_tensor("tasks/ahead", [0.25, 0.5], 0)
        more.add_tensor("tasks/ahead", [math.nan, 0.5], 2)
    report([tmp_path / "runs"], out=tmp_path / "report", forgetting="flashback,flashback_round")
    (row,) = cells(tmp_path / "report")
    assert float(row["flashback_mean"]) == float(row["flashback_round_mean"]) == 0.125


def test_what_no_run_measured_is_named(write_run, tmp_path, capsys):
    write_run("short", {1: 0.25, 2: 0.5})
    report([tmp_path / "runs"], out=tmp_path / "report", forgetting="flashback,client,gem,forward_transfer")
    said = capsys.readouterr().err
    keys = ("data.monitor_test", "callbacks.client_forgetting", "data.tasks", "data.tasks to DomainStream")
    for name, key in zip(("flashback", "client", "gem", "forward_transfer"), keys, strict=True):
        assert f"--forgetting has {name}, but no run measured" in said
        assert key in said


def test_intransigence_of_two_runs_as_the_page_computes_it(tmp_path, monkeypatch, capsys):
    """The diagonals are (.75, .5) and (1, .75)."""
    for name, table in (
        ("digits_classes", [[0.75, math.nan], [0.25, 0.5]]),
        ("digits_classes_joint", [[1.0, math.nan], [1.0, 0.75]]),
    ):
        with RecordWriter(tmp_path / "runs" / name / "version_0") as more:
            more.add_tensor("tasks/table", [[0.5, math.nan], [math.nan, math.nan]], 1)
            more.add_tensor("tasks/table", table, 2)
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```py\n(.*?)```", (DOCS / "how_forgetting_is_measured.md").read_text(), re.DOTALL)
    exec(code, {})
    assert "0.2500" in capsys.readouterr().out


def test_a_definition_that_needs_another_net_is_refused(tmp_path):
    with pytest.raises(ValueError, match="--forgetting is 'intransigence', which compares a run with one"):
        report([tmp_path / "missing"], out=tmp_path / "report", forgetting="intransigence")


def test_an_unknown_definition_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(ValueError, match=r"--forgetting is 'chaudry', must be one of client, .*chaudhry"):
        report([tmp_path / "missing"], out=tmp_path / "report", forgetting="client,chaudry")
    assert not (tmp_path / "report").exists()


def test_a_round_of_one_client_is_left_out(write_run, no_pictures, tmp_path):
    """It has nobody's data to forget: round 2 with drops of 1/4 and 1/2 counts, round 3 does not, and round 1 never does."""
    with RecordWriter(write_run("all", {1: 0.25, 3: 0.5})) as more:
        for round, clients, after in ((2, [0, 1], [[0.5, 0.0], [0.25, 0.5]]), (3, [2], [[1.0]])):
            more.add_tensor("clients/cohort", clients, round)
            more.add_tensor("clients/accuracy_before", BEFORE[: len(clients)], round)
            more.add_tensor("clients/accuracy_after", after, round)
    report([tmp_path / "runs"], out=tmp_path / "report", forgetting="client,client_worst")
    (row,) = cells(tmp_path / "report")
    assert [float(row[f"{name}_mean"]) for name in ("client", "client_worst")] == [0.375, 0.5]


def test_the_mean_over_clients_is_that_over_pairs():
    """Of three clients one has no validation sample: four pairs, though the models have two, one and one of them."""
    nan = math.nan
    change = torch.tensor([[0.5, -0.25, nan], [0.125, 0.5, nan], [-0.5, -0.75, nan]])
    assert DEFINITIONS["client"].shown(change) == pytest.approx((0.25 - 0.125 + 0.5 + 0.75) / 4)
