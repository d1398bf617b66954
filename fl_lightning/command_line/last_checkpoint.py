"""LastCheckpoint: the newest state of a run, in ``last.ckpt``."""

from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

_UNFINISHED = "unfinished.ckpt"


class LastCheckpoint(Checkpoint):
    """Writes ``last.ckpt`` after every evaluation and, where there is none, every so many rounds and after the last one.

    That of the last round gets its name once all other callbacks are through with the run. Some then work for minutes, such as
    CCVR. A run that ends meanwhile resumes from an earlier round and does their work; from the last one it would skip it.

    Args:
        folder: of the file.
        every: rounds; None: after every evaluation.
    """

    def __init__(self, folder: Path, every: int | None) -> None:
        self.folder, self.every = folder, every

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if self.every is not None and (trainer.should_stop or trainer.global_step % self.every == 0):
            self._save(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.every is None and not trainer.sanity_checking and trainer.global_step > 0:
            self._save(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero and (unfinished := self.folder / _UNFINISHED).exists():
            unfinished.replace(self.folder / "last.ckpt")

    def _save(self, trainer: Trainer) -> None:
        path = self.folder / (_UNFINISHED if trainer.should_stop else "last.ckpt")
        trainer.save_checkpoint(path, weights_only=False)  # else Lightning prints a line each time
