"""RecordLogger: what a run logs, as lines of JSON that need no tracker to be read."""

import json
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from fl_lightning.atomic_files import naming_folder

RECORD_FILE = "record.jsonl"


class RecordLogger(Logger):
    """A logger that appends scalars, distributions and the numbers behind figures to ``record.jsonl``, which reports read.

    A line is one object: ``{"round": 3, "time": 1.7e9, "scalars": {"train/loss": 0.5}}``, the time in s since 1970; or with
    ``tensors``, nested lists by name, or ``histograms``, lists of [right edge, count], in the place of ``scalars``. NaN and
    infinities are written as JavaScript calls them. A process begins with a line ``{"begins": 1.7e9}``. Each line is on its
    way to the disk when the next is logged: a run that is killed leaves whole lines, but for the last.

    Args:
        folder: that of the run; made with the first line.

    Raises:
        OSError: from what logs, naming the folder, if it cannot be written.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.file = Path(folder).absolute() / RECORD_FILE
        self._has_begun = False

    @property
    def name(self) -> str:
        return self.file.parent.parent.name

    @property
    def version(self) -> str:
        return self.file.parent.name

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Writes nothing: they stand in the run's ``config.yaml``."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write scalars of a round, ``step``."""
        self._write(step or 0, scalars={name: float(value) for name, value in metrics.items()})

    @rank_zero_only
    def log_tensors(self, tensors: Mapping[str, Tensor], round: int) -> None:
        """Write numbers of any shape."""
        self._write(round, tensors={name: tensor.tolist() for name, tensor in tensors.items()})

    @rank_zero_only
    def log_distribution(self, name: str, values: Tensor, bins: Tensor, round: int) -> None:
        """Write how many of the values (n,) are between one of the bins' edges and the next; empty bins are left out."""
        counts, edges = np.histogram(values.cpu().double().numpy(), bins.double().numpy())
        filled = counts > 0
        self._write(round, histograms={name: np.stack([edges[1:], counts], axis=1)[filled].tolist()})

    def _write(self, round: int, **numbers: dict[str, Any]) -> None:
        """Append a line. The file is opened each time: a fit that goes on cuts it."""
        now = time.time()
        lines: list[dict[str, Any]] = [] if self._has_begun else [{"begins": now}]
        lines.append({"round": round, "time": now, **numbers})
        with naming_folder(self.file.parent):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with open(self.file, "a", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(line)}\n" for line in lines)
        self._has_begun = True
