"""RunRecord: one fit at a time writes a run's record, and each round stands in it once."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]

from fl_lightning.training.record_logger import RECORD_FILE, RecordLogger

_EVENT_FILES = "events.out.tfevents.*"


class RunRecord(Callback):
    """Locks the folders that a fit writes to, and cuts their curves where the checkpoint was written that it goes on from.

    A checkpoint remembers how long TensorBoard's event files and ``record.jsonl`` were. What a killed process logged after
    that is cut off when a fit goes on in the same folder, since its rounds are done again. A fit that ends before it begins to
    train leaves the curves of the fit before as they were. Locks end with the process, however that ends.
    """

    def __init__(self) -> None:
        self._locks = ExitStack()
        self._found: list[Path] = []  # event files and records of earlier fits
        self._sizes: dict[str, int] = {}  # name of such a file -> its bytes when the checkpoint was written
        self._rounds = -1  # that the checkpoint has, if a fit goes on from one
        self._training = False

    def open(self, trainer: Trainer, folder: Path | None) -> None:
        """Lock the run's folder, where it is known, and those of loggers that have one; before anything is written.

        Raises:
            ValueError: naming the folder, if another fit writes to it.
        """
        if not trainer.is_global_zero:
            return
        folders = [logger.log_dir for logger in trainer.loggers if isinstance(logger, TensorBoardLogger | CSVLogger)]
        for path in sorted({Path(each).resolve() for each in [*folders, *([folder] if folder is not None else [])]}):
            try:
                path.mkdir(parents=True, exist_ok=True)
                self._locks.enter_context(FileLock(path / ".lock", timeout=0))
            except Timeout:
                self._locks.close()
                raise ValueError(
                    f"{path} is being written by another fit: wait for its end, stop it, or set trainer.default_root_dir to "
                    "another folder"
                ) from None
        self._found = list(_curve_files(trainer))

    def on_save_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        for logger in trainer.loggers:
            logger.save()  # what a checkpoint counts as done is on disk, whenever the process ends
        if trainer.is_global_zero:
            checkpoint["event_files"] = {path.name: path.stat().st_size for path in _curve_files(trainer)}

    def on_load_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._sizes, self._rounds = checkpoint.get("event_files", {}), checkpoint["global_step"]
        rank_zero_only(print)(f"The fit goes on after round {checkpoint['global_step']}, from {trainer.ckpt_path}")

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        if self._rounds == trainer.max_steps:  # no round is left to train, but what a fit ends with is written again
            self._cut(trainer)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._cut(trainer)

    def _cut(self, trainer: Trainer) -> None:
        """Take the curves back to where the checkpoint was written."""
        self._training = True
        goes_on = {path.parent for path in self._found if path.name in self._sizes}
        for path in self._found:
            if path.parent in goes_on:
                _cut(path, self._sizes.get(path.name))
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger) and Path(logger.log_dir).resolve() in goes_on:
                # A TensorBoard that is open has read what is cut off: this has it forget those rounds.
                start = Event(session_log=SessionLog(status=SessionLog.START))
                logger.experiment._get_file_writer().add_event(start, self._rounds + 1)

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        if self._found and not self._training:
            for path in set(_curve_files(trainer)).difference(self._found):  # Lightning made them, and they hold nothing
                with suppress(OSError):  # one file too many does no harm
                    path.unlink()
        self._locks.close()

    def teardown(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        self._locks.close()


def _curve_files(trainer: Trainer) -> Iterator[Path]:
    """Files that grow as a run goes on, in the folders that loggers write them to."""
    if trainer.is_global_zero:
        folders = {logger.log_dir for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)}
        folders |= {logger.file.parent for logger in trainer.loggers if isinstance(logger, RecordLogger)}
        for folder in {Path(folder).resolve() for folder in folders}:
            yield from folder.glob(_EVENT_FILES)
            yield from folder.glob(RECORD_FILE)


def _cut(path: Path, size: int | None) -> None:
    """Leave a file's first bytes; without a size it is younger than the checkpoint, and goes."""
    if size is None:
        path.unlink()
    elif path.stat().st_size > size:
        os.truncate(path, size)
