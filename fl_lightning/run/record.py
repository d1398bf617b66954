"""RunRecord: a fit with a folder writes a record there, one fit at a time, and the record has each round once."""

import json
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

from fl_lightning.run.record_lines import RECORD_FILE, SETTINGS_FILE
from fl_lightning.run.record_logger import RecordLogger
from fl_lightning.run.settings import RunSettings
from fl_lightning.state.atomic_files import atomic_write

_EVENT_FILES = "events.out.tfevents.*"
_WITH_FOLDER = TensorBoardLogger | CSVLogger | RecordLogger


class RunRecord(Callback):
    """Arranges the writing of ``record.jsonl``, and cuts it to its length at the checkpoint from which a fit resumes.

    Where there is no config, the settings are written next to it.

    A checkpoint stores the lengths of the record and of its mirror, TensorBoard's event files. When a fit resumes in the same
    folder, the later lines of a killed process are cut off, since its rounds are done again. A fit that ends before it
    starts to train does not change the files. The folders that a fit writes to are locked until it ends, however it ends.
    """

    def __init__(self) -> None:
        self._locks = ExitStack()
        self._folder: Path | None = None  # of the record
        self._logger: RecordLogger | None = None  # added to the trainer's own
        self._found: list[Path] = []  # event files and records of earlier fits
        self._sizes: dict[str, int] = {}  # of such a file, by its identity: its bytes when the checkpoint was written
        self._rounds = -1  # in the checkpoint, if a fit resumes from one
        self._training = False

    def open(self, trainer: Trainer, folder: Path | None) -> None:
        """Give the trainer a logger for the record of a run with a folder, and lock the folders; before anything is written.

        Args:
            folder: folder of only this run, if there is one.

        Raises:
            ValueError: naming the folder, if another fit writes to it.
        """
        with_folder = [logger for logger in trainer.loggers if isinstance(logger, _WITH_FOLDER)]
        if trainer.is_global_zero:
            self._lock({Path(logger.log_dir).resolve() for logger in with_folder} | ({folder.resolve()} if folder else set()))
        recorded = [Path(logger.log_dir).resolve() for logger in with_folder if isinstance(logger, RecordLogger)]
        leaves_nothing = trainer.fast_dev_run  # pyright: ignore[reportAttributeAccessIssue]
        self._folder = None if leaves_nothing else folder
        if self._folder is not None and self._folder.resolve() not in recorded:
            self._logger = RecordLogger(self._folder)
            trainer.loggers = [*trainer.loggers, self._logger]
        self._found = list(self._files(trainer))

    def _lock(self, folders: set[Path]) -> None:
        for path in sorted(folders):
            try:
                path.mkdir(parents=True, exist_ok=True)
                self._locks.enter_context(FileLock(path / ".lock", timeout=0))
            except Timeout:
                self._locks.close()
                raise ValueError(
                    f"{path} is being written by another fit: wait for its end, stop it, or set trainer.default_root_dir to "
                    "another folder"
                ) from None

    def on_save_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        for logger in trainer.loggers:
            logger.save()  # rounds that a checkpoint counts as done are on disk, whenever the process ends
        if trainer.is_global_zero:
            checkpoint["event_files"] = {_identity(path): path.stat().st_size for path in self._files(trainer)}

    def on_load_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn != "fit":  # an evaluation by the trainer of a fit
            return
        self._sizes, self._rounds = checkpoint.get("event_files", {}), checkpoint["global_step"]
        self._check_whole()
        rank_zero_only(print)(f"The fit continues after round {checkpoint['global_step']}, from {trainer.ckpt_path}")

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        """Give the record the names of the classes, before anything is written."""
        for logger in trainer.loggers:
            if isinstance(logger, RecordLogger):
                logger.classes = module.data.classes  # pyright: ignore[reportAttributeAccessIssue]

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        if self._rounds == trainer.max_steps:  # no round is left to train, but the end of a fit is written again
            self._cut(trainer)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._cut(trainer)
        settings: RunSettings = module.settings  # pyright: ignore[reportAssignmentType]
        if self._folder is not None and trainer.is_global_zero and not settings.of_config:
            with atomic_write(self._folder / SETTINGS_FILE) as path:
                path.write_text(json.dumps(settings.for_reports(trainer), indent=1), encoding="utf-8")

    def _cut(self, trainer: Trainer) -> None:
        """Cut the files to their lengths at the checkpoint."""
        self._training = True
        goes_on = self._going_on()
        for path, size in goes_on.items():
            _cut(path, size)
        folders = {path.parent for path in goes_on}
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger) and Path(logger.log_dir).resolve() in folders:
                # An open TensorBoard has read the part that is cut off: this makes it forget those rounds.
                start = Event(session_log=SessionLog(status=SessionLog.START))
                logger.experiment._get_file_writer().add_event(start, self._rounds + 1)

    def _check_whole(self) -> None:
        """Refuse to go on from a file that has lost what the checkpoint's rounds wrote: it cannot be written anew.

        Raises:
            ValueError: naming the file.
        """
        has_record = any(identity.startswith(RECORD_FILE) for identity in self._sizes)
        for path, size in self._going_on().items():
            lost = path.name == RECORD_FILE and has_record if size is None else path.stat().st_size < size
            if lost:
                raise ValueError(
                    f"{path} lacks lines that it had after round {self._rounds}, that of the checkpoint: put it back from a "
                    "copy, or move it away to go on without its earlier rounds"
                )

    def _going_on(self) -> dict[Path, int | None]:
        """The files in folders of the checkpoint's run, each with its size then; None for a file that is younger."""
        identities = {path: _identity(path) for path in self._found}
        folders = {path.parent for path, identity in identities.items() if identity in self._sizes}
        return {path: self._sizes.get(identity) for path, identity in identities.items() if path.parent in folders}

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        if self._found and not self._training:
            for path in set(self._files(trainer)).difference(self._found):  # Lightning made them, and they are empty
                with suppress(OSError):  # one file too many does no harm
                    path.unlink()
        self._close(trainer)

    def teardown(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        self._close(trainer)

    def _close(self, trainer: Trainer) -> None:
        """Leave the record and the locks: later tests of a trainer are not part of the fit."""
        if self._logger is not None:
            self._logger.finalize("success")
            trainer.loggers = [logger for logger in trainer.loggers if logger is not self._logger]
        self._locks.close()

    def _files(self, trainer: Trainer) -> Iterator[Path]:
        """Files that grow during a run, in the folders of its loggers."""
        loggers = [*trainer.loggers, self._logger]
        folders = {Path(one.log_dir).resolve() for one in loggers if isinstance(one, TensorBoardLogger | RecordLogger)}
        for folder in folders if trainer.is_global_zero else ():
            yield from folder.glob(_EVENT_FILES)
            yield from folder.glob(RECORD_FILE)


def run_folder(trainer: Trainer, named: Path | None) -> Path | None:
    """The folder of only this run: the named one, otherwise that of the first logger that makes one for each run."""
    return named or next((Path(logger.log_dir) for logger in trainer.loggers if isinstance(logger, _WITH_FOLDER)), None)


def _identity(path: Path) -> str:
    """The identity of a file among other runs: the name of TensorBoard's, of a record also its first line, with a time."""
    if path.name != RECORD_FILE:
        return path.name
    with path.open("rb") as file:
        return f"{path.name} {file.readline(99).decode(errors='replace').strip()}"


def _cut(path: Path, size: int | None) -> None:
    """Keep a file's first bytes; without a size it is younger than the checkpoint, and is deleted."""
    if size is None:
        path.unlink()
    elif path.stat().st_size > size:
        os.truncate(path, size)
