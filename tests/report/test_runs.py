"""Runs in folders: found at any depth, skipped with a reason, finished or not."""

import pytest

from fl_lightning.report.groups import group_runs
from fl_lightning.report.runs import flatten, read_runs


def test_runs_are_found_at_any_depth_and_each_once(write_run, tmp_path):
    folders = {write_run("a", {1: 0.5}, seed=seed) for seed in range(3)}
    runs, remarks = read_runs([tmp_path / "runs", tmp_path / "runs" / "seed_1", *folders])
    assert {run.folder for run in runs} == folders
    assert len(runs) == 3
    assert remarks == []


def test_what_is_no_run_is_skipped_and_named(write_run, tmp_path):
    """Without config, with a config that is cut off, without a record, with the config of something else."""
    good, bare, cut, silent, other = (write_run(name, {1: 0.5}) for name in ("good", "bare", "cut", "silent", "other"))
    (bare / "config.yaml").unlink()
    (cut / "config.yaml").write_text("model: {class_path: 'fl")
    (silent / "record.jsonl").unlink()
    (other / "config.yaml").write_text("[1, 2]")
    runs, remarks = read_runs([tmp_path / "runs"])
    assert [run.folder for run in runs] == [good]
    assert sorted(remarks) == sorted(
        [
            f"{bare}: skipped, it has neither config.yaml nor settings.json",
            f"{cut}: skipped, its config.yaml is not that of a run",
            f"{silent}: skipped, it has no record.jsonl",
            f"{other}: skipped, its config.yaml is not that of a run",
        ]
    )


def test_an_empty_folder_and_a_missing_one_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"RUNS is .*empty, which has no run: give folders with record.jsonl"):
        read_runs([tmp_path / "empty"])
    with pytest.raises(FileNotFoundError, match=r"RUNS has .*gone, which is not a folder: give folders of runs"):
        read_runs([tmp_path / "gone"])


@pytest.mark.parametrize(
    ("rounds", "results", "finished"),
    [
        (5, None, True),
        (8, None, False),
        (8, {"rounds": 5}, True),
        (8, {"rounds": 5, "max_steps": 8}, True),
        (8, {"rounds": 3}, False),
        (8, {"rounds": 5, "max_steps": 5}, False),
    ],
)
def test_finished(write_run, rounds, results, finished):
    """At max_steps; stopped; ended by itself after 5 of 8; prolonged after its results of round 3, or of the last one of 5."""
    folder = write_run("a", dict.fromkeys(range(1, 6), 0.5), rounds=rounds, results=results)
    ((run,), _) = read_runs([folder])
    assert run.finished is finished


def test_a_run_that_was_killed_before_its_last_evaluation_is_not_finished(write_run):
    """It logged what its clients forgot in the last round; a run without evaluations has none to wait for."""
    killed = write_run("a", {2: 0.5, 4: 0.6}, rounds=6, scalars={"forgetting/client_mean": dict.fromkeys(range(1, 7), -0.1)})
    ended = write_run("b", {2: 0.5, 6: 0.6}, seed=1, rounds=6, scalars={"train/loss": dict.fromkeys(range(1, 7), 1.0)})
    unevaluated = write_run("c", {}, seed=2, rounds=6, scalars={"train/loss": dict.fromkeys(range(1, 7), 1.0)})
    runs, _ = read_runs([killed, ended, unevaluated])
    assert [run.finished for run in runs] == [False, True, True]
    _, remarks = group_runs(runs[:1])
    assert remarks == [f"{killed}: not finished, 6 of 6 rounds, evaluated after 4; only its curve is drawn"]


def test_one_client_is_not_all(write_run):
    """``data.clients_per_round`` 1 and 1.0."""
    runs, _ = read_runs([write_run(f"{each}", {1: 0.5}, data__clients_per_round=each) for each in (1, 1.0)])
    groups, remarks = group_runs(runs)
    assert [group.label for group in groups] == [f"FedAvg, CrossEntropy, clients per round {each}" for each in ("1", "1.0")]
    assert remarks == []


def test_flatten():
    config = {
        "model": {"class_path": "a.B", "init_args": {"mu": 0.1, "net": {"class_path": "a.C"}, "steps": None}},
        "data": {"augment": [{"class_path": "a.Crop", "init_args": {"size": 2}}, {"class_path": "a.Flip"}], "mean": [0.5, [1]]},
        "list": [],
    }
    assert dict(flatten(config)) == {
        "model": "a.B",
        "model.mu": 0.1,
        "model.net": "a.C",
        "data.augment.0": "a.Crop",
        "data.augment.0.size": 2,
        "data.augment.1": "a.Flip",
        "data.mean": (0.5, (1,)),
    }
