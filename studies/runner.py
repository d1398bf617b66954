"""Runs what is left of a study, and says what remains and how long that takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Self

from fl_lightning.command_line.sweep import EnteredSweep, enter, work
from fl_lightning.report.costs import duration
from fl_lightning.sweep.points import Run
from fl_lightning.sweep.table import Row
from fl_lightning.sweep.worker import Stop
from studies.declaration import Study, Sweep
from studies.page import PAGE, write_page
from studies.results_file import Collector, Result, read_results, recorded_results, sweep_folder, write_results

RESULTS_FILE = "runs.csv"


class _Lines:
    """The screen of a study's sweeps: what happens, and what remains whenever that has changed."""

    def __init__(self, remains: Callable[[], str]) -> None:
        self._remains, self._said = remains, ""
        self._say_what_remains()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing is open."""

    def say(self, line: str) -> None:
        """Print it."""
        print(line, flush=True)
        self._say_what_remains()

    def show(self, rows: Sequence[Row], progress: Mapping[str, str]) -> None:
        """Nothing: what happens is said."""

    def _say_what_remains(self) -> None:
        if (remains := self._remains()) != self._said:
            self._said = remains
            print(remains, flush=True)


def run_study(study: Study, out: Path, results: Path, jobs: int, data: Sequence[str], retry_failed: bool) -> list[int]:
    """Run a study, or what is left of it, and write its results file, page and figure, also where it is stopped.

    What the results file has is done, whatever the folder of the runs holds: a study goes on from it on another machine.

    Args:
        study: what to run.
        out: the folder of its runs.
        results: the folder of its results file, page and figure.
        jobs: runs at once; 0 runs none and writes what there is.
        data: options that say where the data lies.
        retry_failed: whether failed runs are tried again.

    Returns:
        the signals that asked for an end.

    Raises:
        ValueError: in one line, if a folder or the results file is of other settings or another version, or runs have failed.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"OUT is {out}, which is a file: give a folder")
    collector = Collector(out, recorded_results(study, results / RESULTS_FILE))
    with Stop() as stop:
        entered = [_enter(sweep, out, jobs, data, retry_failed, collector.recorded_runs(sweep)) for sweep in study.sweeps]
        ended = _write(study, collector, results)  # before the first run: what cannot be written is said now
        with _Lines(lambda: remaining(study, collector, jobs)) as screen:
            for sweep in entered if jobs else []:
                work(sweep, screen, stop)
                ended = _write(study, collector, results)
    if failed := sum(result.ended == "failed" for result in ended):
        raise ValueError(f"{failed} of {study.total} runs failed, {results / PAGE} says why: --retry-failed tries again")
    return stop.signals


def remaining(study: Study, collector: Collector, jobs: int) -> str:
    """How many runs are done and remain, and how long they take by those of the same sweep, or of all where it has none.

    The time is that of the rounds; starts of processes are not in it.
    """
    left, seconds = [], []
    for sweep in study.sweeps:
        results = collector.results(sweep)
        times = [result.scalars["seconds"] for result in results if result.ended == "done"]
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


def _enter(
    sweep: Sweep, out: Path, jobs: int, data: Sequence[str], retry_failed: bool, left_out: Sequence[Run]
) -> EnteredSweep:
    settings = sweep.settings
    folder = sweep_folder(out, sweep)
    options = (*settings.options, *data)
    return enter(replace(settings, out=folder, jobs=max(jobs, 1), options=options, retry_failed=retry_failed), left_out)


def _write(study: Study, collector: Collector, folder: Path) -> list[Result]:
    """Write what has ended; gives it."""
    ended = [result for sweep in study.sweeps for result in collector.results(sweep)]
    write_results(study, ended, folder / RESULTS_FILE)
    write_page(study, read_results(study, folder / RESULTS_FILE), folder)
    return ended
