"""The folder of a run of a sweep: its progress, its results, and the error if it failed."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

from fl_lightning.functional.forgetting import mean_over_rounds
from fl_lightning.report.log import Log, read_log
from fl_lightning.run.lost_rounds import MOST_AT_END
from fl_lightning.run.record_lines import RECORD_FILE
from fl_lightning.state.versions import versions

_ACCURACY, _FORGETTING = "val/accuracy", "forgetting/"
_ERROR = "fl-lightning: error: "
_OTHER_READINGS = ("best", "last", "moving_average")


class RunFolder:
    """A run's folder in the sweep's, with ``output.txt`` and ``<name of the config, without its ending>/version_N``."""

    def __init__(self, path: Path, config: str) -> None:
        self.path, self._versions = path, path / config
        self.output = path / "output.txt"
        self._seen_round = -1

    def finished(self) -> Path | None:
        """The newest ``version_N`` with results; None before the end of the fit."""
        return next((one for one in reversed(versions(self._versions)) if (one / "results.json").exists()), None)

    def metrics(self) -> dict[str, float] | None:
        """The numbers of a finished fit that sweeps compare; None before its end, and if its last rounds were lost.

        Forgetting has two names: that with ``/last`` is the last measured one, that with ``/mean`` the mean of reports.
        """
        if (version := self.finished()) is None:
            return None
        results = json.loads((version / "results.json").read_text())
        if results.get("rounds_without_update", 0) > MOST_AT_END:  # then the fit ends with an error, after it wrote these
            return None
        curves = _log(version, _FORGETTING).scalars
        forgetting = {name: curve for name, curve in curves.items() if name.startswith(_FORGETTING)}
        means = {f"{name}/mean": mean_over_rounds(curve.by_round()) for name, curve in forgetting.items()}
        finite = {name: value for name, value in means.items() if math.isfinite(value)}
        return final_metrics(results) | finite

    def prepare(self) -> list[str]:
        """Options with which the fit continues from the newest checkpoint.

        Without one it starts again, in an empty folder, and so does a fit that ended in lost rounds.
        """
        if self.finished() is None and any(self._versions.glob("version_*/checkpoints/last.ckpt")):
            return ["--ckpt_path", "last"]
        shutil.rmtree(self._versions, ignore_errors=True)
        self.path.mkdir(parents=True, exist_ok=True)
        return []

    def error(self, exit_code: int) -> str:
        """The reason why the fit ended, in one line: its last error, otherwise the last line of its output."""
        lines = [line.strip() for line in self.output.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
        if errors:
            return errors[-1]
        if exit_code < 0:
            return f"killed by signal {-exit_code}" + (", perhaps for want of memory" if exit_code == -9 else "")
        return lines[-1] if lines else f"exit code {exit_code}, and no output"

    def new_accuracies(self) -> list[tuple[int, float]]:
        """Rounds and validation accuracies that were logged since the last call."""
        newest = next((one for one in reversed(versions(self._versions)) if (one / RECORD_FILE).exists()), None)
        curve = None if newest is None else _log(newest, _ACCURACY).scalars.get(_ACCURACY)
        new = [] if curve is None else list(curve.after(self._seen_round).by_round().items())
        self._seen_round = max([self._seen_round, *(round for round, _ in new)])
        return new


def _log(version: Path, named: str) -> Log:
    """The record of a run as far as it is written, with names that contain a text.

    Raises:
        ValueError: naming the record, if it is damaged.
    """
    log = read_log(version, named)
    if log.is_damaged:
        raise ValueError(f"{version / RECORD_FILE} is damaged: move the run's folder away, so that it is trained again")
    return log


def final_metrics(results: dict[str, Any]) -> dict[str, float]:
    """The numbers of a ``results.json`` that sweeps compare.

    ``test_accuracy`` and ``val_accuracy`` are the final ones, as in reports. They are followed by the other readings, such as
    ``test_accuracy_best``, forgetting, such as ``forgetting/round/last``, personal models and scores of tasks.
    """
    measured = [name for name in ("test_accuracy", "val_accuracy") if results[name]]
    final = {name: results[name]["last_rounds_mean"] for name in measured}
    others = {f"{name}_{reading}": results[name][reading] for name in measured for reading in _OTHER_READINGS}
    forgetting = {f"{name}/last": value for name, value in results["newest_forgetting"].items()}
    return {**final, **others, **forgetting, **results["personal"], **results["tasks"]}
