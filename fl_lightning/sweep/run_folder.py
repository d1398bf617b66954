"""The folder of a run of a sweep: where it stands, what it measured, why it failed."""

import json
import shutil
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.directory_watcher import DirectoryDeletedError
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fl_lightning.training.record_lines import record_lines
from fl_lightning.training.record_logger import RECORD_FILE

_ACCURACY = "val/accuracy"
_ERROR = "fl-lightning: error: "
_FINAL = ("last_rounds_mean", "last_100_round_mean")  # the second in files of earlier versions
_OTHER_READINGS = ("best", "last", "moving_average")
_KEEP_LITTLE = {"images": 1, "histograms": 1, "tensors": 1, "scalars": 0}  # 0 is all


class RunFolder:
    """A run's folder in the sweep's, with ``output.txt`` and ``<name of the config>/version_N``.

    Args:
        path: the folder.
        config: name of the config, without its ending.
    """

    def __init__(self, path: Path, config: str) -> None:
        self.path, self._versions = path, path / config
        self.output = path / "output.txt"
        self._events: EventAccumulator | None = None
        self._seen_round = -1

    def results(self) -> dict[str, Any] | None:
        """What a finished fit wrote; None before."""
        found = sorted(self._versions.glob("version_*/results.json"))
        return json.loads(found[-1].read_text()) if found else None

    def prepare(self) -> list[str]:
        """Options with which the fit goes on from the newest checkpoint; without one it starts anew, in an empty folder."""
        if any(self._versions.glob("version_*/checkpoints/last.ckpt")):
            return ["--ckpt_path", "last"]
        shutil.rmtree(self._versions, ignore_errors=True)  # of a run that was killed before its first checkpoint
        self.path.mkdir(parents=True, exist_ok=True)
        return []

    def error(self, exit_code: int) -> str:
        """Why the fit ended, in one line: its last error, else the last line of its output."""
        lines = [line.strip() for line in self.output.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
        if errors:
            return errors[-1]
        if exit_code < 0:
            return f"killed by signal {-exit_code}" + (", perhaps for want of memory" if exit_code == -9 else "")
        return lines[-1] if lines else f"exit code {exit_code}, and no output"

    def new_accuracies(self) -> list[tuple[int, float]]:
        """Rounds and validation accuracies that were logged since the last call, in event files or ``record.jsonl``."""
        records = sorted(self._versions.glob(f"version_*/{RECORD_FILE}"))
        logged = _recorded(records[-1]) if records else self._in_events()
        new = [(round, value) for round, value in logged if round > self._seen_round]
        self._seen_round = max([self._seen_round, *(round for round, _ in new)])
        return new

    def _in_events(self) -> list[tuple[int, float]]:
        if self._events is None:
            files = sorted(self._versions.glob("version_*/events.out.tfevents.*"))
            if not files:
                return []
            self._events = EventAccumulator(str(files[-1].parent), size_guidance=_KEEP_LITTLE)
        try:
            self._events.Reload()
        except DirectoryDeletedError:  # by the run itself, which failed before its first round
            self._events = None
            return []
        if _ACCURACY not in self._events.Tags()["scalars"]:
            return []
        return [(event.step, event.value) for event in self._events.Scalars(_ACCURACY)]


def _recorded(record: Path) -> list[tuple[int, float]]:
    """Rounds and validation accuracies of a record, as far as it is written."""
    try:
        data = record.read_bytes()
    except FileNotFoundError:  # the run has removed it, as it failed before its first round
        return []
    # Numbers behind figures take most of a record: lines that cannot have the accuracy are not decoded.
    named = [line for line in data.splitlines(keepends=True) if _ACCURACY.encode() in line and line.endswith(b"\n")]
    lines = record_lines(b"".join(named))
    return [(line.round, line.scalars[_ACCURACY]) for line in lines if _ACCURACY in line.scalars]


def final_metrics(results: dict[str, Any]) -> dict[str, float]:
    """The numbers of a ``results.json`` that sweeps compare.

    ``test_accuracy`` and ``val_accuracy`` are the final ones, as in reports; the other readings, ``test_accuracy_best`` and the
    like, forgetting, personal models and scores of tasks follow.
    """
    measured = [name for name in ("test_accuracy", "val_accuracy") if results[name]]
    final = {name: next(results[name][key] for key in _FINAL if key in results[name]) for name in measured}
    others = {f"{name}_{reading}": results[name][reading] for name in measured for reading in _OTHER_READINGS}
    personal = results.get("personal", {})  # a run of an earlier version has none
    return {**final, **others, **results["newest_forgetting"], **personal, **results["tasks"]}
