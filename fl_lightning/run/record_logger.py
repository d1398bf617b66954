"""RecordLogger: a run's log as lines of JSON, which can be read without a tracker."""

import json
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from fl_lightning.run.record_lines import RECORD_FILE, packed
from fl_lightning.state.atomic_files import naming_folder


class RecordLogger(Logger):
    """A logger that appends scalars and the numbers behind figures to ``record.jsonl``, the log that all our tools read.

    Every fit with a folder adds one to its trainer's loggers. A line is one object:
    ``{"round": 3, "time": 1.7e9, "scalars": {"train/loss": 0.5}}``, the time in s since 1970; or with ``tensors`` instead of
    ``scalars``, each ``{"shape": [2], "float32": "AACAPwAAAEA="}``, base64 of little-endian float32. NaN and infinities are
    written as in JavaScript. A process begins with a line ``{"begins": 1.7e9, "classes": ["0", "1"]}``, with the names of the
    classes in the order of labels. Each line goes to the file at once: a run that is killed leaves whole lines, except perhaps
    the last.

    Args:
        folder: that of the run; made with the first line.

    Raises:
        OSError: from what logs, naming the folder, if it cannot be written.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self._folder = Path(folder)
        self.file = Path(folder).absolute() / RECORD_FILE
        self.classes: Sequence[str] = ()  # names of the run's classes, written as a process begins
        self._opened: FileIO | None = None

    @property
    def name(self) -> str:
        return self.file.parent.parent.name

    @property
    def version(self) -> str:
        return self.file.parent.name

    @property
    def log_dir(self) -> str:
        """The folder."""
        return str(self._folder)

    @property
    def save_dir(self) -> str:
        """The folder above name and version."""
        return str(self.file.parent.parent.parent)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Writes nothing: ``config.yaml`` or ``settings.json`` contains them."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write scalars of a round, ``step``."""
        self._write(step or 0, scalars={name: float(value) for name, value in metrics.items()})

    @rank_zero_only
    def log_tensors(self, tensors: Mapping[str, Tensor], round: int) -> None:
        """Write numbers of any shape, in float32."""
        self._write(round, tensors={name: packed(tensor.detach().cpu().float()) for name, tensor in tensors.items()})

    @rank_zero_only
    def log_distribution(self, name: str, values: Tensor, bins: Tensor, round: int) -> None:
        """Write the number of values (n,) between each of the bins' edges and the next.

        The result is a tensor of rows [right edge, count], without those of empty bins.
        """
        counts, edges = np.histogram(values.cpu().double().numpy(), bins.double().numpy())
        self._write(round, tensors={name: packed(np.stack([edges[1:], counts], axis=1)[counts > 0])})

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Close the file; later lines belong to a new process."""
        if self._opened is not None:
            self._opened.close()
        self._opened = None

    def _write(self, round: int, **numbers: dict[str, Any]) -> None:
        """Append a line at the present end of the file, since a resumed fit cuts it."""
        now = time.time()
        with naming_folder(self._folder):
            if self._opened is None:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                self._opened = FileIO(self.file, "a")
                self._append({"begins": now, "classes": [*self.classes]})
            self._append({"round": round, "time": now, **numbers})

    def _append(self, line: dict[str, Any]) -> None:
        data = f"{json.dumps(line)}\n".encode()
        while data and self._opened is not None:  # a full disk takes a part, and then raises
            data = data[self._opened.write(data) :]
