"""Sweeps with real runs: stopped, killed, shared, with runs that fail and runs that are pruned."""

import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest
from fork_server import FORKED_RUNS
from options import NO_PICTURES
from optuna.trial import TrialState, create_trial

from fl_lightning.sweep.points import Run
from fl_lightning.sweep.run_folder import RunFolder
from fl_lightning.sweep.study import SweepStudy
from fl_lightning.sweep.worker import Stop, Worker, _Job

SMALL = "--model.net MLP --model.net.hidden [16] --data.clients_per_round 5 --trainer.val_check_interval 2".split()
SWEEP = ["sweep", "--config", "digits_tce.yaml", *SMALL, *NO_PICTURES, "--out", "out"]
LOSSES = ["--set", "model.loss=CrossEntropy,TruncatedCrossEntropy"]
NAMES = ["loss=CrossEntropy/seed_1", "loss=TruncatedCrossEntropy/seed_1"]


def children(folder: Path) -> list[int]:
    """Runs that a sweep started in this folder: each leads a session."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        number = int(process.name)
        try:
            if os.getsid(number) == number and (process / "cwd").resolve() == folder:
                found.append(number)
        except OSError:
            continue
    return found


def wait_for(condition, process=None):
    deadline = time.monotonic() + 120
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def attempts(folder: Path) -> dict[str, list[str]]:
    """How the attempts at each run ended."""
    trials = optuna.load_study(study_name="runs", storage=f"sqlite:///{folder / 'study.db'}").trials
    return {name: [trial.state.name for trial in trials if trial.user_attrs["run"] == name] for name in NAMES}


@pytest.fixture
def sweep(command_line):
    """Start a sweep as a real process, which does not outlive the test."""
    started = []

    def start(*arguments):
        started.append(command_line(*arguments, wait=False))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.skipif(not os.access("/proc/self/autogroup", os.W_OK), reason="this system does not group processes by session")
@pytest.mark.parametrize("niceness", [0, 7])
def test_a_run_has_the_priority_of_its_sweep(niceness):
    """Its session, by which the system compares it with other programs, starts at 0."""
    program = (
        "import fl_lightning.command_line.run_of_sweep as run; run.take_over_priority(); "
        "print(open('/proc/self/autogroup').read())"
    )
    command = ["nice", "-n", str(niceness), sys.executable, "-c", program]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, start_new_session=True).stdout
    assert printed.split()[-2:] == ["nice", str(niceness)]


def test_a_run_is_charged_its_own_processor_time(tmp_path):
    """Of two at once, of which one works for .4 s of its processor's time and one sleeps; a killed attempt makes it unknown."""
    study = SweepStudy(tmp_path)
    study.queue([Run({"lr": "0.1"}, 1), Run({"lr": "0.1"}, 2)])
    works = "import time\nwhile time.process_time() < .4: pass"
    commands = [[sys.executable, "-S", "-c", code] for code in (works, "import time; time.sleep(.6)")]
    jobs = [_Job(study.claim(), None, subprocess.Popen(command)) for command in commands]
    wait_for(lambda: all(job.ended for job in jobs))
    for job in jobs:
        study.note_time(job.claim, job.processor_seconds)
        study.finish(job.claim, {})
    busy, asleep = (record.processor_seconds for record in study.records())
    assert 0.4 <= busy < 0.6
    assert asleep < 0.2
    study.queue([Run({"lr": "0.1"}, 3)])
    study.claim().lock.release()  # as by kill -9 of the worker
    again = study.claim()
    study.note_time(again, 1.0)
    study.finish(again, {})
    assert study.records()[-1].processor_seconds is None


def test_a_run_that_ended_as_its_worker_stopped_keeps_its_time(tmp_path, monkeypatch):
    """The next worker finds it finished, and adds nothing to its 2 s."""
    study = SweepStudy(tmp_path)
    study.queue([Run({"lr": "0.1"}, 1)])
    stopped = study.claim()
    study.note_time(stopped, 2.0)
    stopped.lock.release()
    monkeypatch.setattr(RunFolder, "metrics", lambda self: {"test_accuracy": 0.5})
    screen = SimpleNamespace(say=lambda line: None)
    Worker(study, Path("digits_tce.yaml"), [], 1, None, False, screen, Stop()).work()
    (record,) = study.records()
    assert (record.stands, record.processor_seconds) == ("done", 2.0)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")
def test_a_sweep_survives_its_workers(sweep, tmp_path):
    """kill -9, then two workers at once: no process is left behind, and no run is done twice."""
    command = [*SWEEP, *LOSSES, "--trainer.max_steps", "40"]
    versions = [tmp_path / "out" / name / "digits_tce" / "version_0" for name in NAMES]

    worker = sweep(*command)
    wait_for((versions[0] / "checkpoints" / "last.ckpt").exists, worker)
    assert len(children(tmp_path)) == 1
    worker.kill()
    wait_for(lambda: children(tmp_path) == [])
    assert not any((version / "results.json").exists() for version in versions)

    workers = [sweep(*command) for _ in range(2)]
    outputs = [worker.communicate(timeout=240) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    said = "".join(out for out, _ in outputs)
    assert attempts(tmp_path / "out") == {NAMES[0]: ["FAIL", "COMPLETE"], NAMES[1]: ["COMPLETE"]}
    assert f"{NAMES[0]}: resumed from its checkpoint" in said
    for name, version in zip(NAMES, versions):
        assert said.count(f"{name}: done") == 1
        assert json.loads((version / "results.json").read_text())["rounds"] == 40
        assert not version.with_name("version_1").exists()


@pytest.mark.slow
def test_a_sweep_goes_on_after_ctrl_c_and_past_a_failure(main, tmp_path, monkeypatch):
    """Ctrl-C ends the run and says what to do; the same command goes on; what fails at run time is recorded, exit code 1."""
    monkeypatch.setattr("fl_lightning.sweep.worker.subprocess", FORKED_RUNS)
    command = [*SWEEP, "--trainer.max_steps", "40", "--set", "data.num_clients=20,2000"]
    folder = tmp_path / "out" / "num_clients=20" / "seed_1"
    version = folder / "digits_tce" / "version_0"

    def interrupt():
        wait_for((version / "checkpoints" / "last.ckpt").exists)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    code, _, error = main(*command)
    assert code == 130
    assert "stopped by SIGINT, 1 running, 1 waiting: run the same command to resume" in error
    assert "stopped after round" in (folder / "output.txt").read_text()  # the run could say goodbye

    code, out, error = main(*command)
    assert code == 1
    why = "data.num_clients is 2000, must be between 1 and 1,437"
    assert "num_clients=20/seed_1: resumed from its checkpoint" in out
    assert f"num_clients=2000/seed_1: failed: {why}" in out
    assert "1 of 2 runs failed: --retry-failed tries again" in error
    results = json.loads((version / "results.json").read_text())
    lines = list(csv.DictReader((tmp_path / "out" / "results.csv").open()))
    assert [(line["done"], line["failed"]) for line in lines] == [("1", "0"), ("0", "1")]
    assert float(lines[0]["test_accuracy"]) == results["test_accuracy"]["last_rounds_mean"]
    assert float(lines[0]["test_accuracy_best"]) == results["test_accuracy"]["best"]
    assert lines[1]["errors"].startswith(f"seed 1: {why}")

    monkeypatch.setattr("fl_lightning.sweep.entered_sweep.Worker.work", lambda self: None)
    code, out, _ = main(*command, "--retry-failed")
    assert code == 0
    assert "1 waiting" in out


@pytest.mark.slow
def test_a_poor_run_is_pruned(main, tmp_path, monkeypatch):
    """Five earlier runs were better in every round than a run can be: the sixth is ended, and the sweep has not failed.

    It is a new interpreter, in which a file of the folder does not stand in for a library's.
    """
    monkeypatch.setattr("fl_lightning.sweep.worker._LOOK", 0.2)
    (tmp_path / "random.py").write_text("raise SystemExit('the file of the user, not the library')")
    SweepStudy(tmp_path / "out")
    study = optuna.load_study(study_name="runs", storage=f"sqlite:///{tmp_path / 'out' / 'study.db'}")
    for seed in range(1, 6):
        run = Run({}, seed)
        told = {"point": {}, "seed": seed, "run": run.name, "metrics": {"val_accuracy": 1.0}}
        curve = dict.fromkeys(range(201), 2.0)
        study.add_trial(create_trial(state=TrialState.COMPLETE, value=1.0, user_attrs=told, intermediate_values=curve))
    code, out, error = main(*SWEEP, "--prune", "--seeds", "6", "--trainer.max_steps", "200", "--data.partition.alpha", "100")
    assert code == 0, error
    assert "base/seed_6: pruned, round " in out
    assert "5 done, 1 pruned" in out
    assert study.trials[-1].state == TrialState.PRUNED
    assert study.trials[-1].last_step >= 40  # a fifth of the rounds


def test_a_run_ends_with_the_process_that_started_it(tmp_path):
    """The pipe at its standard input closes: it is gone before its slow imports are over."""
    run = subprocess.Popen(
        [sys.executable, "-m", "fl_lightning.command_line.run_of_sweep", "fit", "--config", "digits_tce.yaml"],
        stdin=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    run.stdin.close()
    assert run.wait(timeout=60) == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []
