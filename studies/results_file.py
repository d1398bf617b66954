"""``runs.csv``: a row for each run of a study that has ended, with all that its page is written from."""

import csv
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fl_lightning import __version__
from fl_lightning.atomic_files import atomic_write
from fl_lightning.report.costs import time_of_rounds
from fl_lightning.report.forgetting import mean_after_first
from fl_lightning.report.runs import Run, read_run
from fl_lightning.sweep.points import Point, as_options, point_name
from fl_lightning.sweep.points import Run as SweepRun
from fl_lightning.sweep.run_folder import final_metrics
from fl_lightning.sweep.study import Record, SweepStudy
from studies.declaration import SWEEP, Study, Sweep

_FIXED = (SWEEP, "seed", "ended", "version", "commit", "source", "command", "error")
_ENDED = ("done", "failed")
_MEGABYTE = 1e6
_CURE = "move it away, and measure again"


@dataclass(frozen=True)
class Result:
    """A run that has ended, well or with an error."""

    sweep: str
    point: Point
    seed: int
    ended: str  # done or failed
    version: str  # of the package
    commit: str
    source: str  # of the data
    command: str  # of the run, without where the data lies
    error: str
    scalars: Mapping[str, float]

    @property
    def name(self) -> str:
        """What sets it apart in the study."""
        return f"{self.sweep}/{point_name(self.point)}/seed_{self.seed}"


def command(sweep: Sweep, point: Point, seed: int) -> str:
    """The command of one run of a sweep."""
    settings = sweep.settings
    options = ["--config", settings.config, *settings.options, *as_options(point), "--seed_everything", str(seed)]
    return shlex.join(["fl-lightning", "fit", *options])


class Collector:
    """The runs of a study that have ended: reads their folders, each finished run once.

    Args:
        out: folder of the study.
        recorded: runs that are done without a folder there: those of the results file, which may come from another machine.
    """

    def __init__(self, out: Path, recorded: Sequence[Result] = ()) -> None:
        self._out = out
        self._recorded = recorded
        self._read: dict[Path, Run] = {}

    def recorded_runs(self, sweep: Sweep) -> list[SweepRun]:
        """The runs of a sweep that need no folder."""
        return [SweepRun(result.point, result.seed) for result in self._recorded if result.sweep == sweep.name]

    def left(self, sweep: Sweep) -> int:
        """How many runs of an entered sweep have not ended."""
        return sum(record.stands not in _ENDED for record in self._records(sweep))

    def results(self, sweep: Sweep) -> list[Result]:
        """The runs of an entered sweep that have ended: the recorded ones, then those of the folder.

        Raises:
            ValueError: if one is of another version of the package.
        """
        found = [self._result(sweep, record) for record in self._records(sweep) if record.stands in _ENDED]
        names = {result.name for result in found}
        return [result for result in self._recorded if result.sweep == sweep.name and result.name not in names] + found

    def _records(self, sweep: Sweep) -> list[Record]:
        return SweepStudy(sweep_folder(self._out, sweep)).records()

    def _result(self, sweep: Sweep, record: Record) -> Result:
        point, seed = record.run.point, record.run.seed
        said = command(sweep, point, seed)
        if record.stands == "failed":
            return Result(sweep.name, point, seed, "failed", "", "", "", said, record.error, {})
        folder = _version(sweep_folder(self._out, sweep) / record.run.name / Path(sweep.settings.config).stem)
        if folder not in self._read:
            self._read[folder] = read_run(folder)
        run = self._read[folder]
        version, commit = run.results["version"], run.results["commit"] or ""
        if version != __version__:
            raise ValueError(f"OUT has {folder}, a run of fl-lightning {version}, this is {__version__}: give a new OUT")
        source = Path(str(run.config["data.source"])).name
        return Result(sweep.name, point, seed, "done", version, commit, source, said, "", scalars(run))


def sweep_folder(out: Path, sweep: Sweep) -> Path:
    """Where the runs of a sweep lie."""
    return out / sweep.name


def _version(runs: Path) -> Path:
    """The newest version folder that has results."""
    return sorted(runs.glob("version_*/results.json"))[-1].parent


def scalars(run: Run) -> dict[str, float]:
    """The numbers at the end of a run, its costs, and the means over rounds of what it has measured of forgetting."""
    results, log = run.results, run.log.scalars
    means = {f"{name}/mean": mean_after_first(run, name) for name in log if name.startswith("forgetting/")}
    reached = {f"rounds_to/{target}": number for target, number in results["rounds_to_target"].items() if number is not None}
    classes = [curve.values[-1] for name, curve in log.items() if name.startswith("class_accuracy/")]
    spread = {"class_accuracy/sd": float(np.std(classes))} if classes else {}
    costs = {"MB_up": results["bytes_up"] / _MEGABYTE, "MB_down": results["bytes_down"] / _MEGABYTE}
    times = {"rounds": results["rounds"], "seconds": round(time_of_rounds(run)[1], 1)}
    measured = {**final_metrics(results), **means, **reached, **spread, **costs, **times}
    return {name: value for name, value in measured.items() if math.isfinite(value)}


def write_results(study: Study, results: Sequence[Result], path: Path) -> None:
    """Write the file; a number has all its digits.

    Raises:
        ValueError: in one line, if the file is of other settings or another version, or has runs that the results lack or have
            with other numbers.
    """
    if path.exists():
        _check_grown(read_results(study, path), results, path)
    names = list(dict.fromkeys(name for result in results for name in result.scalars))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*_FIXED, *study.keys, *names], lineterminator="\n")
        writer.writeheader()
        for result in results:
            fixed = {name: getattr(result, name) for name in _FIXED}
            writer.writerow({**fixed, **result.point, **result.scalars})


def recorded_results(study: Study, path: Path) -> list[Result]:
    """The runs that are done by a results file; none where there is no file.

    Raises:
        ValueError: in one line, if it is no such file, or of other settings.
    """
    return [result for result in read_results(study, path) if result.ended == "done"] if path.exists() else []


def read_results(study: Study, path: Path) -> list[Result]:
    """The rows of a file.

    Raises:
        ValueError: in one line, if it is no such file, or of other settings.
    """
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        results = [_row(row, study.keys) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no results file of the study {study.name}, of these settings: {_CURE}") from error
    declared = {
        command(sweep, point, seed) for sweep in study.sweeps for point in sweep.points for seed in sweep.settings.seeds
    }
    for result in results:
        if result.command not in declared:
            raise ValueError(f"{path} has a run of other settings, {result.command}, which {study.name} has not: {_CURE}")
    return results


def _row(row: dict[str, str], keys: Iterable[str]) -> Result:
    fixed = {name: row.pop(name) for name in _FIXED}
    point = {key: value for key in keys if (value := row.pop(key))}
    numbers = {name: float(text) for name, text in row.items() if text}
    return Result(**{**fixed, "seed": int(fixed["seed"])}, point=point, scalars=numbers)


def _check_grown(before: Sequence[Result], now: Sequence[Result], path: Path) -> None:
    done = {result.name: result for result in now}
    for result in before:
        if result.ended == "done" and result.version != __version__:
            raise ValueError(f"{path} has runs of fl-lightning {result.version}, this is {__version__}: {_CURE}")
        if result.ended == "done" and result != done.get(result.name):
            what = "other numbers" if result.name in done else "none"
            raise ValueError(f"{path} has the run {result.name}, of which OUT has {what}: give its OUT, or move the file away")
