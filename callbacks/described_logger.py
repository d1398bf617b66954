"""DescribedTensorBoardLogger: every tag has a description."""

from collections.abc import Mapping
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
from torch.utils.tensorboard import FileWriter, SummaryWriter
from torch.utils.tensorboard.summary import scalar

from fl_lightning.callbacks.tags import metadata
from fl_lightning.state.atomic_files import naming_folder

_FLUSHED_AFTER = 5  # seconds, for those who watch; torch's default is 120


class _EventFile(FileWriter):
    """TensorBoard's event file, whose errors name its folder."""

    def add_event(self, event: Event, step: int | None = None, walltime: float | None = None) -> None:
        with naming_folder(self.get_logdir()):
            super().add_event(event, step, walltime)

    def flush(self) -> None:
        with naming_folder(self.get_logdir()):
            super().flush()

    def close(self) -> None:
        with naming_folder(self.get_logdir()):
            super().close()


class _Writer(SummaryWriter):
    """torch's writer, with such a file."""

    def _get_file_writer(self) -> FileWriter:
        if self.all_writers is None or self.file_writer is None:
            with naming_folder(self.log_dir):
                self.file_writer = _EventFile(self.log_dir, self.max_queue, self.flush_secs, self.filename_suffix)
            self.all_writers = {self.log_dir: self.file_writer}
        return self.file_writer


class DescribedTensorBoardLogger(TensorBoardLogger):
    """TensorBoard's logger of the command line.

    The first point of a tag carries its description, which TensorBoard shows at the chart.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"flush_secs": _FLUSHED_AFTER, **kwargs})
        self._described: set[str] = set()

    @property
    @rank_zero_experiment
    def experiment(self) -> SummaryWriter:
        """torch's writer of event files; a full disk is named by each of its methods."""
        if self._experiment is None:
            self._experiment = _Writer(log_dir=self.log_dir, **self._kwargs)
        return self._experiment

    @rank_zero_only
    def save(self) -> None:
        """Write what waits to be written, and the hyperparameters."""
        with naming_folder(self.log_dir):
            super().save()

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write scalars, each with ``step``, the round."""
        for tag, value in metrics.items():
            summary = scalar(tag, float(value))
            if tag not in self._described:
                summary.value[0].metadata.MergeFrom(metadata(tag, "scalars"))
                self._described.add(tag)
            self.experiment._get_file_writer().add_summary(summary, step)
