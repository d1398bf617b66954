"""Two sides compared: what sets them apart, the numbers of both against sums by hand, and what cannot be compared."""

import csv
import math

import pytest

from fl_lightning.report.comparison import compare
from fl_lightning.report.runs import read_runs


@pytest.fixture
def sides(tmp_path):
    """The runs below ``runs/*/a*`` and ``runs/*/b*``."""

    def read():
        folders = [sorted((tmp_path / "runs").glob(f"*/{name}*")) for name in "ab"]
        return [read_runs(side)[0] for side in folders]

    return read


def test_two_runs(write_run, sides):
    """With one seed there is a difference and no p value; all that differs is named, with both values."""
    forgot = {"forgetting/client_mean": {1: 1.0, 2: -0.25}}
    write_run("a", {1: 0.5, 2: 0.25}, scalars=forgot, results={"rounds": 2, "commit": "abc"})
    write_run("b", {1: 0.5, 2: 0.75}, model="FedProx", model__mu=0.1, scalars=forgot, results={"rounds": 2, "commit": "def"})
    settings, outcome, remarks = compare(*sides())
    assert settings.rows == [
        ["model", "fl_lightning.FedAvg", "fl_lightning.FedProx"],
        ["model.mu", "-", "0.1"],
        ["fl-lightning's commit", "abc", "def"],
    ]
    assert outcome.rows[:3] == [
        ["test/accuracy, final", "0.250", "0.750", "+0.500 (1)", "-"],
        ["test/accuracy, best", "0.500", "0.750", "+0.250 (1)", "-"],
        ["client forgetting F_ki, mean over rounds", "0.250", "0.250", "+0.000 (1)", "-"],
    ]
    assert outcome.columns[0] == "measure"
    assert remarks == []


def test_of_tasks_that_arrive_the_last_table_counts(write_run, sides):
    """The best accuracy of a sequence of tasks is that of the first, and says nothing."""
    for name, forgot in (("a", 0.5), ("b", 0.25)):
        scalars = {"tasks/forgetting": {1: 0.0, 2: forgot}, "tasks/backward_transfer": {2: -forgot}}
        write_run(name, {1: 0.75, 2: 0.5}, metric="tasks/accuracy", model=name, scalars=scalars)
    rows = {row[0]: row[1:4] for row in compare(*sides())[1].rows}
    assert rows["tasks/accuracy, final"] == ["0.500", "0.500", "+0.000 (1)"]
    assert rows["tasks/forgetting"] == ["0.500", "0.250", "-0.250 (1)"]
    assert rows["tasks/backward_transfer"] == ["-0.500", "-0.250", "+0.250 (1)"]
    assert "tasks/accuracy, best" not in rows


def test_two_sweeps(write_run, sides):
    """A rate that varies on both sides is no difference between them; each rate is compared with itself, seed by seed."""
    for rate in (0.125, 0.25):
        for seed, (base, other) in enumerate([(0.25, 0.5), (0.5, 0.875)]):
            write_run(f"a{rate}", {1: base}, seed=seed, model__optimizer__lr=rate)
            write_run(f"b{rate}", {1: other + rate}, seed=seed, model__optimizer__lr=rate, model__local_steps=10)
    write_run("a1", {1: 0.5}, model__optimizer__lr=1.0)
    settings, outcome, remarks = compare(*sides())
    assert settings.rows == [["model.local_steps", "3", "10"]]
    first, second = (row for row in outcome.rows if row[1] == "test/accuracy, final")
    assert first[:-2] == [
        "FedAvg, CrossEntropy, lr 0.125",
        "test/accuracy, final",
        "0.375 ± 0.177",
        "0.812 ± 0.265",
        "+0.438 (2)",
    ]
    assert second[:-2] == [
        "FedAvg, CrossEntropy, lr 0.25",
        "test/accuracy, final",
        "0.375 ± 0.177",
        "0.938 ± 0.265",
        "+0.562 (2)",
    ]
    # Student's t with one degree of freedom, of 4 tests: final and best, at either rate. Twice p of the rate .125 is less.
    assert outcome.records[0]["p_holm"] == pytest.approx(4 * (1 - 2 * math.atan(9) / math.pi))
    assert outcome.rows[2][1:] == ["seconds", "0.000 ± 0.000", "0.000 ± 0.000", "+0.000 (2)", "0.000 to 0.000", "-"]
    assert remarks == ["FedAvg, CrossEntropy, lr 1: left out, on one side only"]


def test_the_same_settings_twice(write_run, sides):
    """Such as before and after a change of the code."""
    write_run("a", {1: 0.5}, results={"rounds": 1, "version": "0.1"})
    write_run("b", {1: 0.75}, results={"rounds": 1, "version": "0.2"})
    settings, outcome, _ = compare(*sides())
    assert settings.rows == [["fl-lightning's version", "0.1", "0.2"]]
    assert outcome.rows[0][3] == "+0.250 (1)"


def test_several_values_on_one_side_cannot_be_compared(write_run, sides):
    for rate in (0.1, 0.3):
        write_run(f"a{rate}", {1: 0.5}, model__optimizer__lr=rate)
    write_run("b", {1: 0.5}, model__optimizer__lr=1.0)
    with pytest.raises(ValueError, match=r"^FIRST has runs that differ in model.optimizer.lr, in which FIRST and SECOND"):
        compare(*sides())


def test_nothing_belongs_together(write_run, sides):
    """Both sides have both losses and both rates, in other combinations."""
    for side, rates in (("a", (0.1, 0.3)), ("b", (0.3, 0.1))):
        for loss, rate in zip(("CrossEntropy", "TruncatedCrossEntropy"), rates, strict=True):
            write_run(f"{side}_{loss}", {1: 0.5}, model__loss=loss, model__optimizer__lr=rate)
    with pytest.raises(ValueError, match="^SECOND has no run that belongs to one of FIRST"):
        compare(*sides())


def test_the_command(write_run, main, tmp_path):
    write_run("a", {1: 0.5})
    write_run("b", {1: 0.75}, model__loss="TruncatedCrossEntropy")
    code, out, err = main("compare", "runs/seed_0/a", "runs/seed_0/b")
    assert (code, err) == (0, "")
    assert "model.loss" in out
    assert "fl_lightning.losses.TruncatedCrossEntropy" in out
    assert "+0.250 (1)" in out
    assert "No setting differs." in main("compare", "runs/seed_0/a", "runs/seed_0/a")[1]

    assert main("compare", "runs/seed_0/a", "runs/seed_0/b", "--out", "both/tables")[0] == 0
    folder = tmp_path / "both" / "tables"
    assert {path.name for path in folder.iterdir()} == {
        f"{n}.{end}" for n in ("settings", "comparison") for end in ("csv", "tex")
    }
    with open(folder / "comparison.csv", newline="") as file:
        row = next(csv.DictReader(file))
    assert (row["measure"], row["difference"], row["p_holm"]) == ("test/accuracy, final", "0.25", "")
    lines = (folder / "comparison.tex").read_text().splitlines()
    assert r"test/accuracy, final & 0.500 & 0.750 & +0.250 (1) & -- \\" in lines


@pytest.mark.parametrize(
    ("accuracy", "remark", "refusal"),
    [
        (
            {0: 0.5},
            "it has logged no accuracy",
            "no run has logged an accuracy (tasks/accuracy, test/accuracy, val/accuracy) in runs/seed_1/a/version_0: wait",
        ),
        ({1: 0.5}, "it is not finished", "SECOND has no finished run: runs/seed_1/a/version_0 is not at its last round"),
    ],
)
def test_runs_without_a_final_accuracy(write_run, sides, main, accuracy, remark, refusal):
    """They are left out of a side with others, and refused where they are a side; round 0 is not trained."""
    write_run("a", {2: 0.5})
    write_run("a", accuracy, seed=1, rounds=2)
    write_run("b", {2: 0.75}, model="FedProx")
    write_run("b", {2: 0.75}, seed=1, model="FedProx")
    _, outcome, remarks = compare(*sides())
    assert outcome.rows[0][3:5] == ["+0.250 (1)", "-"]
    assert len(remarks) == 1
    assert remarks[0].endswith(f"runs/seed_1/a/version_0: left out, {remark}")
    code, _, error = main("compare", "runs/seed_0/a", "runs/seed_1/a")
    assert (code, error.count("\n")) == (1, 1)
    assert refusal in error


def test_the_interval_of_a_difference(write_run, sides):
    """Of differences 0, 0, 3/8 the mean is 1/8, and sd / sqrt 3 too; 4.3027 is t of two degrees of freedom."""
    for seed, value in enumerate((0.5, 0.5, 0.875)):
        write_run("a", {1: 0.5}, seed=seed)
        write_run("b", {1: value}, seed=seed, model="FedProx")
    _, outcome, _ = compare(*sides())
    assert outcome.columns[-2:] == ["its 95 % interval", "p (Holm)"]
    assert outcome.rows[0][3:5] == ["+0.125 (3)", "-0.413 to 0.663"]
    low, high = outcome.records[0]["low"], outcome.records[0]["high"]
    assert (low, high) == pytest.approx((0.125 - 4.3027 / 8, 0.125 + 4.3027 / 8), abs=1e-5)
    assert "by Student's t" in outcome.note


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "SECOND is missing: give what it is compared with, as in fl-lightning compare runs/a runs/b"),
        (["runs"], "SECOND is missing: give what it is compared with"),
        (["runs", "gone"], "RUNS has gone, which is not a folder"),
        (["runs", "runs", "more"], "more"),
        (["runs", "runs", "--out", "runs/seed_0/a/version_0/config.yaml/x"], "which is a file or is inside one"),
    ],
)
def test_a_mistake_is_one_line(write_run, main, arguments, error):
    write_run("a", {1: 0.5})
    code, _, err = main("compare", *arguments)
    assert code == 1
    assert err.startswith("fl-lightning: error: ")
    assert error in err
    assert err.count("\n") == 1
