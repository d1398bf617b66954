"""The ``config.yaml`` in a run's folder."""

from lightning.pytorch import Trainer
from lightning.pytorch.cli import SaveConfigCallback

from fl_lightning import __version__
from fl_lightning.atomic_files import atomic_write
from fl_lightning.module import FederatedModule
from fl_lightning.provenance import commit


class SaveConfig(SaveConfigCallback):
    """Lightning's, for a file whose folder is known, written with the first round: a fit that is refused leaves the old one.

    Its first line names the version and the commit of the package.
    """

    def setup(self, trainer: Trainer, module: FederatedModule, stage: str) -> None:
        """Nothing yet."""

    def on_train_batch_start(self, trainer: Trainer, module: FederatedModule, round: int, batch_idx: int) -> None:
        if trainer.is_global_zero and not self.already_saved:
            # The parser's ``save`` changes the working folder meanwhile, and TensorBoard's thread writes by relative paths.
            with atomic_write(self.config_filename) as path:
                made_by = f"# fl-lightning {__version__}, commit {commit() or 'unknown'}\n"
                path.write_text(made_by + self.parser.dump(self.config, skip_none=False), encoding="utf-8")
            self.already_saved = True
