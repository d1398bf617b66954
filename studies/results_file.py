"""``runs.csv``: a row for each run of a study that has ended, with all that its page is written from."""

import csv
import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from fl_lightning.report.runs import Run, read_run
from fl_lightning.run.record_lines import RECORD_FILE
from fl_lightning.state.atomic_files import atomic_write
from fl_lightning.state.versions import versions
from fl_lightning.sweep.points import Point, as_options, point_name
from fl_lightning.sweep.points import Run as SweepRun
from fl_lightning.sweep.run_folder import RunFolder
from fl_lightning.sweep.run_scalars import CHANCE, PROCESSOR_SECONDS, run_scalars
from fl_lightning.sweep.study import Record, SweepStudy
from studies.declaration import PSNR, SSIM, SWEEP, Study, Sweep

_FIXED = (SWEEP, "seed", "ended", "version", "commit", "source", "command", "error")
_ENDED = ("done", "failed")
_MOST_PSNR = 100.0  # dB, for images that were recovered bit for bit, of which it is infinite
ATTACK_FILE = Path("attack", "attack.json")
_COLLAPSED = 1.1  # times chance
COLLAPSED_IS = (
    f"its final model's accuracy, the mean over classes, is at most {_COLLAPSED} times chance; a model that predicts a single "
    "class is at chance, whichever class that is"
)
_CURE = "move it away, and measure again"


@dataclass(frozen=True)
class Result:
    """A run that has ended, well or with an error."""

    sweep: str
    point: Point
    seed: int
    ended: str  # done or failed
    version: str  # of the package; empty where a run failed before its first round, in which it writes both
    commit: str
    source: str  # of the data
    command: str  # of the run, without the folder of the data
    error: str
    scalars: Mapping[str, float]

    @property
    def name(self) -> str:
        """What sets it apart in the study."""
        return f"{self.sweep}/{point_name(self.point)}/seed_{self.seed}"

    @property
    def code(self) -> str:
        """The version and the commit that trained it, shortened; with ``-dirty`` where the checkout had other code."""
        digits, dash, state = self.commit.partition("-")
        return f"{self.version} `{digits[:7]}{dash}{state}`"

    @property
    def has_collapsed(self) -> bool:
        """Whether the final model is no better than one that predicts a single class, see ``COLLAPSED_IS``."""
        return self.scalars.get(CHANCE, math.inf) <= _COLLAPSED

    def agrees_with(self, other: "Result") -> bool:
        """Whether no number that both have differs, whatever code has read them from the run's folder."""
        return self.commit == other.commit and all(
            other.scalars.get(name, value) == value for name, value in self.scalars.items()
        )


def command(sweep: Sweep, point: Point, seed: int) -> str:
    """The command of one run of a sweep."""
    settings = sweep.settings
    options = ["--config", settings.config, *settings.options, *as_options(point), "--seed_everything", str(seed)]
    return shlex.join(["fl-lightning", "fit", *options])


class Collector:
    """The runs of a study that have ended: reads their folders, each finished run once.

    Args:
        out: folder of the study.
        recorded: runs that have ended without a folder there: those of the results file, which may come from another machine.
    """

    def __init__(self, out: Path, recorded: Sequence[Result] = ()) -> None:
        self._out = out
        self._recorded = recorded
        self._read: dict[Path, Run] = {}
        self._entered: dict[str, SweepStudy] = {}  # opening one takes longer than reading it

    def recorded_runs(self, sweep: Sweep, retry_failed: bool) -> list[SweepRun]:
        """The runs of a sweep that need no folder."""
        recorded = settled(self._recorded, retry_failed)
        return [SweepRun(result.point, result.seed) for result in recorded if result.sweep == sweep.name]

    def left(self, sweep: Sweep) -> int:
        """How many runs of an entered sweep have not ended."""
        return sum(record.stands not in _ENDED for record in self._records(sweep))

    def results(self, sweep: Sweep) -> list[Result]:
        """The runs of an entered sweep that have ended: the recorded ones, then those of the folder."""
        found = [self._result(sweep, record) for record in self._records(sweep) if record.stands in _ENDED]
        names = {result.name for result in found}
        return [result for result in self._recorded if result.sweep == sweep.name and result.name not in names] + found

    def _records(self, sweep: Sweep) -> list[Record]:
        if sweep.name not in self._entered:
            self._entered[sweep.name] = SweepStudy(self._out / sweep.name)
        return self._entered[sweep.name].records()

    def folders(self, sweep: Sweep) -> list[Path]:
        """Those of the runs of an entered sweep that are done."""
        return [self._folder(sweep, record) for record in self._records(sweep) if record.stands == "done"]

    def _folder(self, sweep: Sweep, record: Record) -> Path:
        folder = RunFolder(self._out / sweep.name / record.run.name, Path(sweep.settings.config).stem).finished()
        if folder is None:
            raise ValueError(f"{record.run.name} of {self._out / sweep.name} has no results.json: {_CURE}")
        return folder

    def _result(self, sweep: Sweep, record: Record) -> Result:
        point, seed = record.run.point, record.run.seed
        said = command(sweep, point, seed)
        if record.stands == "failed":
            version, commit = _code(self._out / sweep.name / record.run.name)
            return Result(sweep.name, point, seed, "failed", version, commit, "", said, record.error, {})
        folder = self._folder(sweep, record)
        known = [one for one in self._recorded if (one.sweep, one.point, one.seed) == (sweep.name, point, seed)]
        if known and not (folder / RECORD_FILE).exists():  # trained by a version without a record
            return known[0]
        if folder not in self._read:
            self._read[folder] = read_run(folder)
        run = self._read[folder]
        version, commit = run.results["version"], run.results["commit"] or ""
        source = Path(str(run.config["data.source"])).name
        spent = {} if record.processor_seconds is None else {PROCESSOR_SECONDS: round(record.processor_seconds, 1)}
        numbers = run_scalars(run) | attack_scores(folder) | spent
        return Result(sweep.name, point, seed, "done", version, commit, source, said, "", numbers)


def _code(run: Path) -> tuple[str, str]:
    """Version and commit by the first line of the config in the folder of a run that failed; empty where it wrote none."""
    configs = [path for folder in run.glob("*/") for one in versions(folder) if (path := one / "config.yaml").exists()]
    line = configs[-1].read_text(encoding="utf-8").partition("\n")[0] if configs else ""
    found = re.fullmatch(r"# fl-lightning (\S+), commit (\S+)", line)
    return (found[1], found[2]) if found else ("", "")


def attack_scores(folder: Path) -> dict[str, float]:
    """Means over the images that an attack on a run recovered; empty for a run that was not attacked."""
    if not (folder / ATTACK_FILE).exists():
        return {}
    images = json.loads((folder / ATTACK_FILE).read_text(encoding="utf-8"))["images"]
    psnr = (_MOST_PSNR if image["psnr"] is None else min(image["psnr"], _MOST_PSNR) for image in images)
    return {PSNR: mean(psnr), SSIM: mean(image["ssim"] for image in images)}


def write_results(study: Study, results: Sequence[Result], path: Path) -> None:
    """Write the file; a number has all its digits, and rows and columns have one order, whatever order the runs ended in.

    Raises:
        ValueError: in one line, if the file is of other settings, or has runs that the results lack or have with other numbers.
    """
    if path.exists():
        _check_grown(read_results(study, path), results, path)
    names = sorted({name for result in results for name in result.scalars})
    order = {said: place for place, said in enumerate(_declared(study))}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*_FIXED, *study.keys, *names], lineterminator="\n")
        writer.writeheader()
        for result in sorted(results, key=lambda result: order[result.sweep, result.command]):
            fixed = {name: getattr(result, name) for name in _FIXED}
            writer.writerow({**fixed, **result.point, **result.scalars})


def recorded_results(study: Study, path: Path) -> list[Result]:
    """The runs that have ended by a results file, and were attacked where the study asks for it; without a file none."""
    ended = read_results(study, path) if path.exists() else []
    return [result for result in ended if result.ended == "failed" or not study.attack or PSNR in result.scalars]


def settled(recorded: Iterable[Result], retry_failed: bool) -> list[Result]:
    """The recorded runs that are not run again: all, or all that are done."""
    return [result for result in recorded if result.ended == "done" or not retry_failed]


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
        raise ValueError(f"{path} is not a results file of the study {study.name}, of these settings: {_CURE}") from error
    declared = _declared(study)
    for result in results:
        if (result.sweep, result.command) not in declared:
            raise ValueError(f"{path} has a run of other settings, {result.command}, which {study.name} has not: {_CURE}")
    return results


def _declared(study: Study) -> dict[tuple[str, str], None]:
    """Every run's sweep and command, in their order."""
    runs = ((sweep, point, seed) for sweep in study.sweeps for point in sweep.points for seed in sweep.settings.seeds)
    return dict.fromkeys((sweep.name, command(sweep, point, seed)) for sweep, point, seed in runs)


def _row(row: dict[str, str], keys: Iterable[str]) -> Result:
    fixed = {name: row.pop(name) for name in _FIXED}
    point = {key: value for key in keys if (value := row.pop(key))}
    numbers = {name: int(text) if text.isdecimal() else float(text) for name, text in row.items() if text}  # as they were
    return Result(**{**fixed, "seed": int(fixed["seed"])}, point=point, scalars=numbers)


def _check_grown(before: Sequence[Result], now: Sequence[Result], path: Path) -> None:
    done = {result.name: result for result in now}
    for result in before:
        now_has = done.get(result.name)
        if result.ended == "done" and (now_has is None or not result.agrees_with(now_has)):
            what = "none" if now_has is None else "other numbers"
            raise ValueError(f"{path} has the run {result.name}, of which OUT has {what}: give its OUT, or move the file away")
