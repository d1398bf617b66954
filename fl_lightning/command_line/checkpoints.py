"""The checkpoints of a run's folder: ``last.ckpt`` and ``best.ckpt``."""

from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint

from fl_lightning.evaluation.evaluation import has_evaluations

_UNFINISHED = "unfinished.ckpt"


class BestCheckpoint(ModelCheckpoint):
    """``best.ckpt``, by validation accuracy. A user's ModelCheckpoint neither replaces it nor shares its state."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "best", monitor="val/accuracy", mode="max", enable_version_counter=False)


class LastCheckpoint(Checkpoint):
    """``last.ckpt``, written after every evaluation or, where there is none, at an interval and after the last round.

    That of the last round gets its name once all other callbacks are through with the run. Some then work for minutes, such as
    CCVR. A run that ends meanwhile resumes from an earlier round and does their work; from the last one it would skip it.

    Args:
        every: the interval where nothing is evaluated, rounds or time.
    """

    def __init__(self, folder: Path, every: int | timedelta) -> None:
        self.folder, self.every = folder, every
        self._written_at = monotonic()
        self._round: int | None = None  # that of last.ckpt, where it is known

    def resuming(self) -> str:
        """How a stopped fit resumes, in words."""
        if not (self.folder / "last.ckpt").exists():
            return "there is no checkpoint to resume from"
        return "resume with --ckpt_path last" + (f", after round {self._round}" if self._round is not None else "")

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if Path(str(trainer.ckpt_path)).resolve() == (self.folder / "last.ckpt").resolve():
            self._round = checkpoint["global_step"]

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if not has_evaluations(trainer) and (self._is_due(trainer) or trainer.should_stop):
            self._write(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking and trainer.global_step > 0:
            self._write(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero and (unfinished := self.folder / _UNFINISHED).exists():
            unfinished.replace(self.folder / "last.ckpt")
            self._round = trainer.global_step

    def _is_due(self, trainer: Trainer) -> bool:
        if isinstance(self.every, timedelta):  # which the processes do not measure alike
            return trainer.strategy.broadcast(monotonic() - self._written_at >= self.every.total_seconds())
        return trainer.global_step % self.every == 0

    def _write(self, trainer: Trainer) -> None:
        path = self.folder / (_UNFINISHED if trainer.should_stop else "last.ckpt")
        trainer.save_checkpoint(path, weights_only=False)  # else Lightning prints a line each time
        self._written_at = monotonic()
        if not trainer.should_stop:
            self._round = trainer.global_step
