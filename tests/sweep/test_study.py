"""The study: no run twice, none lost, points drawn and told, by workers that come and go."""

import multiprocessing
import os
import signal
import time

import optuna
import pytest

from fl_lightning.sweep.points import Choices, Range, Run
from fl_lightning.sweep.study import Search, SweepStudy

RUNS = [Run({"lr": lr}, seed) for seed in (1, 2) for lr in ("0.1", "0.2")]


def standing(study):
    return {record.run.name: record.stands for record in study.records()}


def test_runs_are_claimed_in_order_and_once(tmp_path):
    """Two workers, in turn: all seeds of the first come before the second's, and then nothing is left."""
    first, second = SweepStudy(tmp_path), SweepStudy(tmp_path)
    first.queue(RUNS)
    second.queue(RUNS)
    claims = [worker.claim() for worker in (first, second, first, second)]
    assert [claim.run for claim in claims] == RUNS
    assert first.claim() is None
    first.finish(claims[0], {"val_accuracy": 0.5, "test_accuracy": 0.25})
    second.fail(claims[1], "why")
    first.prune(claims[2])
    records = first.records()
    assert [record.stands for record in records] == ["done", "failed", "pruned", "running"]
    assert records[0].metrics == {"val_accuracy": 0.5, "test_accuracy": 0.25}
    assert records[1].error == "why"
    assert second.claim() is None


def test_what_was_done_elsewhere_is_taken_off_the_queue(tmp_path):
    """Only what waits: a run that has begun goes on. If it is queued again, it is new."""
    study = SweepStudy(tmp_path)
    study.queue(RUNS)
    claim = study.claim()
    study.withdraw(RUNS[:2])
    assert [record.run for record in study.records()] == [RUNS[0], *RUNS[2:]]
    assert study.claim().run == RUNS[2]
    study.finish(claim, {})
    study.queue(RUNS)
    assert [(record.run, record.stands) for record in study.records()][-1] == (RUNS[1], "waiting")


def test_a_grid_that_grew_gets_the_missing_runs(tmp_path):
    study = SweepStudy(tmp_path)
    study.queue(RUNS[:2])
    study.finish(study.claim(), {})
    study.queue(RUNS)
    claims = [study.claim() for _ in range(3)]
    assert [claim.run for claim in claims] == RUNS[1:]


def test_failed_runs_are_tried_again_on_request(tmp_path):
    study = SweepStudy(tmp_path)
    study.queue(RUNS[:2])
    study.fail(study.claim(), "why")
    study.finish(study.claim(), {})
    study.queue_failed()
    again = study.claim()
    assert again.run == RUNS[0]
    assert study.claim() is None
    assert list(standing(study).values()) == ["running", "done"]


def test_a_released_run_is_taken_up(tmp_path):
    """A worker that ended without a word leaves a free lock; what somebody holds is left alone."""
    study, other = SweepStudy(tmp_path), SweepStudy(tmp_path)
    study.queue(RUNS[:2])
    gone, held = study.claim(), study.claim()
    gone.lock.release()
    again = other.claim()
    assert again.run == gone.run
    assert other.claim() is None
    assert standing(other) == {gone.run.name: "running", held.run.name: "running"}


def test_an_unfinished_run_comes_before_new_ones(tmp_path):
    study = SweepStudy(tmp_path)
    study.queue(RUNS[:3])
    study.claim().lock.release()
    claims = [study.claim() for _ in range(3)]  # each is held
    assert [claim.run for claim in claims] == RUNS[:3]


def _claim_all(folder, start, names):
    study = SweepStudy(folder)
    start.wait()
    while (claim := study.claim()) is not None:
        names.put(claim.run.name)
        study.finish(claim, {})


def test_workers_at_once_share_the_runs(tmp_path):
    """Three processes in a race for 30 runs: each is done once."""
    context = multiprocessing.get_context("fork")
    SweepStudy(tmp_path).queue(Run({"lr": str(number)}, 1) for number in range(30))
    start, names = context.Event(), context.SimpleQueue()
    workers = [context.Process(target=_claim_all, args=(tmp_path, start, names)) for _ in range(3)]
    for worker in workers:
        worker.start()
    start.set()
    done = [names.get() for _ in range(30)]
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert names.empty()
    assert sorted(done) == sorted(f"lr={number}/seed_1" for number in range(30))
    assert set(standing(SweepStudy(tmp_path)).values()) == {"done"}


def _claim_and_hang(folder, claimed):
    claim = SweepStudy(folder).claim()
    claimed.set()
    time.sleep(600)
    claim.lock.release()


def test_a_killed_worker_leaves_its_run_to_others(tmp_path):
    """While it lives nobody takes its run, after kill -9 the next who asks does, at once."""
    context = multiprocessing.get_context("fork")
    study = SweepStudy(tmp_path)
    study.queue(RUNS[:1])
    claimed = context.Event()
    worker = context.Process(target=_claim_and_hang, args=(tmp_path, claimed))
    worker.start()
    assert claimed.wait(60)
    assert study.claim() is None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join(60)
    assert study.claim().run == RUNS[0]


def search(kind="random", trials=3, seeds=(1, 2)):
    axes = [Choices("loss", ("A", "B")), Range("lr", 0.001, 0.1, log=True, whole=False)]
    return Search(kind, axes, seeds, trials)


def points_study(folder):
    return optuna.load_study(study_name="points", storage=f"sqlite:///{folder / 'study.db'}")


def points_of(folder):
    return points_study(folder).trials


def test_a_point_is_worth_the_mean_of_its_seeds(tmp_path):
    """.2 and .6 are .4; with one seed that failed, as a rate at which some diverge, the point has failed too."""
    study = SweepStudy(tmp_path)
    outcomes = iter([0.2, 0.6, None, 0.9, None, None])
    while (claim := study.claim(search())) is not None:
        value = next(outcomes)
        if value is None:
            study.fail(claim, "why")
        else:
            study.finish(claim, {"val_accuracy": value})
    points = points_of(tmp_path)
    assert [point.value for point in points] == [pytest.approx(0.4), None, None]
    assert [point.state.name for point in points] == ["COMPLETE", "FAIL", "FAIL"]
    assert all(0.001 <= point.params["lr"] <= 0.1 for point in points)
    assert len({point.params["lr"] for point in points}) == 3


@pytest.mark.parametrize("kind", ["random", "tpe"])
@pytest.mark.slow
def test_what_is_drawn_does_not_depend_on_the_workers(tmp_path, kind):
    """One worker's points, and those of two in turn, are the same."""

    def drawn(folder, workers):
        studies = [SweepStudy(folder) for _ in range(workers)]
        names = []
        while (claim := studies[len(names) % workers].claim(search(kind, trials=4))) is not None:
            names.append(claim.run.name)
            studies[0].finish(claim, {"val_accuracy": 0.5})
        return names

    alone = drawn(tmp_path / "one", 1)
    assert len(alone) == 8
    assert alone == drawn(tmp_path / "two", 2)


def test_a_search_goes_on_where_it_stopped(tmp_path):
    """More points later, a third seed later: what is missing is added, for the old points too."""
    study = SweepStudy(tmp_path)
    for trials, seeds, missing in ((2, (1,), 2), (3, (1,), 1), (3, (1, 2), 3)):
        count = 0
        while (claim := study.claim(search(trials=trials, seeds=seeds))) is not None:
            study.finish(claim, {"val_accuracy": 0.5})
            count += 1
        assert count == missing
    assert len(points_of(tmp_path)) == 3


def test_a_point_that_a_kill_cut_off_is_drawn_again(tmp_path):
    """Its worker had drawn one of its two values: the next one draws as many whole points as were asked for."""
    study = SweepStudy(tmp_path)
    study.finish(study.claim(search(trials=1, seeds=(1,))), {"val_accuracy": 0.5})
    points_study(tmp_path).ask({"loss": search().distributions()["loss"]})
    study.finish(study.claim(search(trials=2, seeds=(1,))), {"val_accuracy": 0.5})
    assert study.claim(search(trials=2, seeds=(1,))) is None
    assert [point.state.name for point in points_of(tmp_path)] == ["COMPLETE", "FAIL", "COMPLETE"]


@pytest.mark.slow
def test_tpe_finds_the_better_half(tmp_path):
    """Accuracy falls with the distance of log10(lr) from -1: later draws come closer than the first ten, which are random."""
    study, found = SweepStudy(tmp_path), []
    while (claim := study.claim(search("tpe", trials=25, seeds=(1,)))) is not None:
        found.append(float(claim.run.point["lr"]))
        study.finish(claim, {"val_accuracy": 1 - abs(found[-1] - 0.1)})
    assert sum(found[10:]) / 15 > 1.3 * sum(found[:10]) / 10


def test_a_run_below_the_median_is_to_be_pruned(tmp_path):
    """Not before five others have ended, not in the warm-up, and not above the median of .5."""
    study = SweepStudy(tmp_path, prune=True, warm_up=10)
    study.queue(Run({"lr": str(number)}, 1) for number in range(9))
    assert not study.report(early := study.claim(), [(20, 0.0)])
    for number in range(5):
        claim = study.claim()
        study.report(claim, [(5, 0.5), (20, 0.3 + number / 10)])
        study.finish(claim, {"val_accuracy": 0.5})
    assert not study.report(study.claim(), [(20, 0.51)])
    low = study.claim()
    assert not study.report(low, [(5, 0.4)])
    assert study.report(low, [(20, 0.49)])
    assert study.report(study.claim(), [(20, 0.49), (21, 0.9)])  # read at once, as by a machine that is busy
    assert study.report(early, [(21, 0.0)]) is False  # no other has a value in that round


def test_a_file_that_is_no_database_is_named(tmp_path):
    (tmp_path / "study.db").write_bytes(b"garbage" * 1000)
    with pytest.raises(ValueError, match=r"study.db cannot be read as a study: move it away, or give another --out"):
        SweepStudy(tmp_path)


def test_any_name_of_a_folder(tmp_path):
    """In the address of a database, %, ?, # and braces have meanings."""
    for name in ("50%41", "what?x", "a#b c", "set{1}", "é&=+"):
        SweepStudy(tmp_path / name).queue(RUNS)
        assert (tmp_path / name / "study.db").is_file()
        assert len(SweepStudy(tmp_path / name).records()) == len(RUNS)


def test_a_worker_that_waits_too_long_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("fl_lightning.sweep.study._WAIT", 0.1)
    with SweepStudy(tmp_path).lock, pytest.raises(TimeoutError, match="another worker for 0.1 s, .*: repeat the command$"):
        SweepStudy(tmp_path)
