"""Groups of runs, their labels, and which runs are kept."""

import pytest

from fl_lightning.report.groups import group_runs
from fl_lightning.report.runs import read_runs
from fl_lightning.report.tables import settings


@pytest.fixture
def groups(tmp_path):
    def build():
        return group_runs(read_runs([tmp_path / "runs"])[0])

    return build


CURVE = {1: 0.25, 2: 0.5}
LABELS = [
    # changes of each group, labels
    ([{}], ["FedAvg, CrossEntropy"]),
    ([{}, {"model": "FedProx", "model__mu": 0.1}], ["FedAvg, CrossEntropy", "FedProx, CrossEntropy"]),
    ([{}, {"model__loss": "TruncatedCrossEntropy"}], ["FedAvg, CrossEntropy", "FedAvg, TruncatedCrossEntropy"]),
    (
        [{"model__optimizer__lr": 0.1}, {"model__optimizer__lr": 0.03}],
        ["FedAvg, CrossEntropy, lr 0.03", "FedAvg, CrossEntropy, lr 0.1"],
    ),
    # Each method tuned to another rate.
    (
        [{"model__optimizer__lr": 0.1}, {"model": "FedProx", "model__optimizer__lr": 0.03}],
        ["FedAvg, CrossEntropy, lr 0.1", "FedProx, CrossEntropy, lr 0.03"],
    ),
    # A key that one class alone has tells nothing, until runs of that class differ in it.
    (
        [{}, {"model": "FedProx", "model__mu": 0.1}, {"model": "FedProx", "model__mu": 1.0}],
        ["FedAvg, CrossEntropy", "FedProx, CrossEntropy, mu 0.1", "FedProx, CrossEntropy, mu 1"],
    ),
    # Set against not set.
    ([{}, {"model__local_epochs": 5}], ["FedAvg, CrossEntropy", "FedAvg, CrossEntropy, local epochs 5"]),
    # The federation comes last, by size; it is told even where the methods differ too.
    (
        [{"data__partition__alpha": 10.0}, {"data__partition__alpha": 2.0}, {"data__partition__alpha": 0.1}],
        ["FedAvg, CrossEntropy, alpha 0.1", "FedAvg, CrossEntropy, alpha 2", "FedAvg, CrossEntropy, alpha 10"],
    ),
    (
        [{}, {"model": "FedProx", "data__partition__alpha": 1.0}],
        ["FedAvg, CrossEntropy, alpha 0.1", "FedProx, CrossEntropy, alpha 1"],
    ),
    # Where the data is, how clients run and what watches a run are bookkeeping: one group; an average of the weights is not.
    ([{}, {"data__root": "/elsewhere"}, {"trainer__callbacks": ["callbacks.Watcher"]}], ["FedAvg, CrossEntropy"]),
    ([{}, {"model__engine": "vectorized"}, {"model__client_state": "disk"}], ["FedAvg, CrossEntropy"]),
    (
        [{"trainer__callbacks": ["callbacks.Watcher"]}, {"trainer__callbacks": ["callbacks.EMAWeightAveraging"]}],
        ["FedAvg, CrossEntropy", "FedAvg, CrossEntropy, EMAWeightAveraging"],
    ),
    (
        [{}, {"trainer__callbacks": ["lightning.pytorch.callbacks.EarlyStopping"]}],
        ["FedAvg, CrossEntropy", "FedAvg, CrossEntropy, EarlyStopping"],
    ),
    ([{}, {"trainer__limit_val_batches": 1}], ["FedAvg, CrossEntropy", "FedAvg, CrossEntropy, limit val batches 1"]),
    ([{}, {"model__trained": ["a.*", "b"]}], ["FedAvg, CrossEntropy", "FedAvg, CrossEntropy, trained a.* b"]),
    # One short name, two classes.
    ([{"model": "FedAvg"}, {"model": "mine.FedAvg"}], ["FedAvg, CrossEntropy", "FedAvg, CrossEntropy (2)"]),
]


@pytest.mark.parametrize(("changes", "labels"), LABELS)
def test_labels(write_run, groups, changes, labels):
    for number, change in enumerate(changes):
        write_run(f"run_{number}", CURVE, **change)
    assert [group.label for group in groups()[0]] == labels


def test_settings_list_what_only_one_method_has(write_run, study):
    """The label leaves mu out."""
    write_run("a", CURVE)
    write_run("b", CURVE, model="FedProx", model__mu=0.1)
    (table,) = settings(study())
    assert table.columns == ["method", "model", "model.mu"]
    assert table.rows == [
        ["FedAvg, CrossEntropy", "fl_lightning.FedAvg", "-"],
        ["FedProx, CrossEntropy", "fl_lightning.FedProx", "0.1"],
    ]


def test_runs_that_differ_in_the_seed_alone_are_one_group(write_run, groups):
    for seed in (2, 0, 1):
        write_run("a", CURVE, seed=seed)
    (group,), remarks = groups()
    assert group.seeds == (0, 1, 2)
    assert remarks == []


def test_of_a_duplicated_seed_the_newest_finished_run_is_kept(write_run, groups):
    """The newest of all is not finished; the two others are, and the later of them counts."""
    old, new, half = (
        write_run("old", CURVE, start=1.7e9),
        write_run("new", CURVE, start=1.8e9),
        write_run("half", {1: 0.25}, rounds=2, start=1.9e9),
    )
    (group,), remarks = groups()
    assert [run.folder for run in group.runs] == [new]
    assert remarks == [
        f"{old}: left out, {new} has the same seed, learns the same and is newer",
        f"{half}: not finished, 1 of 2 rounds; left out, others of its settings are finished",
    ]


def test_of_a_duplicated_seed_a_run_that_measures_more_is_kept(write_run, groups):
    """The newer run was repeated without F_ki."""
    measured = write_run("measured", CURVE, start=1.7e9, scalars={"forgetting/client_mean": {1: -0.25}})
    repeated = write_run("repeated", CURVE, start=1.8e9)
    (group,), remarks = groups()
    assert [run.folder for run in group.runs] == [measured]
    assert remarks == [f"{repeated}: left out, {measured} has the same seed, learns the same and measures more forgetting"]


def test_unfinished_runs_are_kept_where_there_are_no_others(write_run, groups):
    half = write_run("half", {1: 0.25}, rounds=2)
    (group,), remarks = groups()
    assert not group.finished
    assert remarks == [f"{half}: not finished, 1 of 2 rounds; only its curve is drawn"]
