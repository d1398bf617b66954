"""Runs what is left of a study, and prints what remains and how long that takes."""

import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

from fl_lightning.command_line.sweep import enter
from fl_lightning.report.costs import duration
from fl_lightning.sweep.entered_sweep import EnteredSweep
from fl_lightning.sweep.points import Run as SweepRun
from fl_lightning.sweep.run_folder import RunFolder
from fl_lightning.sweep.run_scalars import WALL_SECONDS
from fl_lightning.sweep.screen import Screen
from fl_lightning.sweep.worker import Stop
from studies.declaration import Study, Sweep
from studies.page import PAGE, write_page
from studies.results_file import (
    ATTACK_FILE,
    Collector,
    Result,
    read_results,
    recorded_results,
    settled,
    write_results,
)

RESULTS_FILE = "runs.csv"
_POLL = 0.2  # seconds between looks at an attack


class _Lines(Screen):
    """The screen of a study's sweeps: prints what happens and, once a run has ended, what remains, and has the page written."""

    def __init__(self, remains: Callable[[], str], write: Callable[[], object]) -> None:
        self._remains, self._write, self._said = remains, write, ""
        self._say_what_remains()

    def say(self, line: str) -> None:
        """Print it, and what remains."""
        super().say(line)
        self._say_what_remains()

    def _say_what_remains(self) -> None:
        if (remains := self._remains()) != self._said:
            self._said = remains
            print(remains, flush=True)
            self._write()


def run_study(study: Study, out: Path, results: Path, jobs: int, data: Sequence[str], retry_failed: bool) -> list[int]:
    """Run a study, or what is left of it, and write its results file, page and figure after every run.

    A run of the results file has ended, whatever the folder of the runs holds: a study goes on from it on another machine.

    Args:
        study: what to run.
        out: the folder of its runs.
        results: the folder of its results file, page and figure.
        jobs: runs at once; 0 runs none and writes what there is.
        data: options that set the folder of the data.
        retry_failed: whether failed runs are tried again.

    Returns:
        the signals that asked for an end.

    Raises:
        ValueError: in one line, if a folder or the results file is of other settings, if a file that the study reads is
            missing, or if runs or attacks have failed.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"OUT is {out}, which is a file: give a folder")
    for name, origin in study.files.items() if jobs else ():
        if not Path(name).is_file():
            raise ValueError(f"{study.name} reads {name}, which is not in the working folder: {origin}")
    collector = Collector(out, recorded_results(study, results / RESULTS_FILE))
    with Stop() as stop:
        begin = _pretrain(study.pretraining, out, data, stop, runs=jobs > 0) if study.pretraining else []
        options = [*data, *begin]
        entered = [
            _enter(sweep, out, jobs, options, retry_failed, collector.recorded_runs(sweep, retry_failed))
            for sweep in study.sweeps
        ]
        with _Lines(lambda: remaining(study, collector, jobs), lambda: _write(study, collector, results)) as screen:
            for sweep in entered if jobs else []:
                sweep.work(screen, stop)
        if study.attack and jobs:
            _attack(study, collector, data, stop, lambda: _write(study, collector, results))
    ended = _write(study, collector, results)
    if not stop.signals and (failed := sum(result.ended == "failed" for result in ended)):
        raise ValueError(f"{failed} of {study.total} runs failed, {results / PAGE} says why: --retry-failed tries again")
    return stop.signals


def is_complete(study: Study, results: Path, retry_failed: bool) -> bool:
    """Whether the results file has all runs; one that failed counts unless it is to be tried again."""
    return len(settled(recorded_results(study, results / RESULTS_FILE), retry_failed)) == study.total


def remaining(study: Study, collector: Collector, jobs: int) -> str:
    """How many runs are done and remain, and how long they take by those of the same sweep, or of all where it has none.

    The time is that of the rounds; starts of processes are not in it.
    """
    left, seconds = [], []
    for sweep in study.sweeps:
        results = collector.results(sweep)
        times = [result.scalars[WALL_SECONDS] for result in results if result.ended == "done"]
        left.append((collector.left(sweep), times))
        seconds += times
    count = sum(number for number, _ in left)
    said = f"{study.name}: {len(seconds)} of {study.total} runs done, {count} remain"
    if not count:
        return said
    if not seconds:
        return f"{said}; how long is known when the first has ended"
    work = sum(number * mean(times or seconds) for number, times in left)
    return f"{said}, about {duration(work / max(jobs, 1))} with {max(jobs, 1)} at once"


def _pretrain(sweep: Sweep, out: Path, data: Sequence[str], stop: Stop, runs: bool) -> list[str]:
    """Train the net with which all runs begin, unless it is there; gives the option with its file.

    Raises:
        ValueError: in one line, if its training fails.
    """
    (seed,) = sweep.settings.seeds
    path, config = out / sweep.name / SweepRun({}, seed).name, Path(sweep.settings.config).stem
    folder = RunFolder(path, config)
    if runs and folder.finished() is None:
        _enter(sweep, out, 1, data, True, ()).work(Screen(), stop)
        if folder.finished() is None and not stop.signals:
            raise ValueError(f"the pretraining failed, {folder.output} says why: the same command tries again")
    return ["--model.initial_weights", str((path / config / "version_0" / "checkpoints" / "last.ckpt").resolve())]


def _enter(
    sweep: Sweep, out: Path, jobs: int, more: Sequence[str], retry_failed: bool, left_out: Sequence[SweepRun]
) -> EnteredSweep:
    settings = sweep.settings
    folder = out / sweep.name
    options = (*settings.options, *more)
    return enter(replace(settings, out=folder, jobs=max(jobs, 1), options=options, retry_failed=retry_failed), left_out)


def _attack(study: Study, collector: Collector, data: Sequence[str], stop: Stop, write: Callable[[], object]) -> None:
    """Attack the runs that are done and were not attacked yet, one after the other, and write what each has recovered.

    A signal ends the attack that is under way, which has no checkpoint: the next call begins it anew.
    """
    folders = [folder for sweep in study.sweeps for folder in collector.folders(sweep)]
    for folder in folders:
        if stop.signals or (folder / ATTACK_FILE).exists():
            continue
        command = ["fl-lightning", "attack", "--ckpt_path", str(folder / "checkpoints" / "last.ckpt")]
        command += [*shlex.split(study.attack), *data]
        print(shlex.join(command), flush=True)
        with subprocess.Popen(command) as process:
            while process.poll() is None and not stop.signals:
                time.sleep(_POLL)
            process.terminate()  # does nothing if it has ended
        if stop.signals:
            return
        if process.returncode:
            raise ValueError(f"{shlex.join(command)} ended with exit code {process.returncode}, and says why above")
        write()


def _write(study: Study, collector: Collector, folder: Path) -> list[Result]:
    """Write what has ended; gives it."""
    ended = [result for sweep in study.sweeps for result in collector.results(sweep)]
    write_results(study, ended, folder / RESULTS_FILE)
    write_page(study, read_results(study, folder / RESULTS_FILE), folder)
    return ended
