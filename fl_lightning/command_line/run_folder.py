"""The folder of a run, its checkpoints and ``config.yaml``."""

from pathlib import Path

from jsonargparse import Namespace
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only

from fl_lightning import __version__
from fl_lightning.checks import check_file
from fl_lightning.config_files.reading import config_values
from fl_lightning.run.provenance import commit
from fl_lightning.state.atomic_files import atomic_write
from fl_lightning.state.versions import KEPT, Kept, newest_checkpoint

# Values of ckpt_path that are not a file -> name of the checkpoint in the newest version.
NAMED: dict[str, Kept] = {**{name: name for name in KEPT}, "last_if_any": "last"}


def run_folder(config: Namespace) -> Path:
    """The folder of a run's versions: ``<trainer.default_root_dir>/<name of the first config, or of the method>``.

    For a config that a run stored, it is the folder of that run; with another ``trainer.default_root_dir`` one of that name.
    """
    files, root = [Path(name) for name in config.get("config") or []], config.trainer.default_root_dir
    if files and files[0].parent.name.startswith("version_"):
        own, stored = files[0].parent.parent, config_values(str(files[0]))
        return own if stored.get("trainer", {}).get("default_root_dir", root) == root else Path(root) / own.name
    name = files[0].stem if files else config.model.class_path.rpartition(".")[2]
    return Path(root) / name


def find_checkpoint(ckpt_path: str, run_folder: Path, may_begin: bool) -> str | None:
    """A checkpoint file from a path or a name, which is printed.

    Args:
        ckpt_path: the file, or ``last``, ``best`` or ``last_if_any`` of the newest version.
        may_begin: whether ``last_if_any`` can find none.

    Returns:
        The file; None to begin a new run.

    Raises:
        FileNotFoundError: if there is no such checkpoint.
    """
    if ckpt_path not in NAMED:
        check_file("ckpt_path", ckpt_path, f"give {', '.join(NAMED)} or a file")
        return ckpt_path
    newest = newest_checkpoint(run_folder, NAMED[ckpt_path], ckpt_path)
    if newest is None and not (ckpt_path == "last_if_any" and may_begin):
        raise FileNotFoundError(
            f"ckpt_path is {ckpt_path}, but {run_folder} holds no such checkpoint: "
            "leave ckpt_path out to start a new run, or set trainer.default_root_dir to the folder of the run"
        )
    rank_zero_only(print)(f"ckpt_path is {ckpt_path}: {newest or f'none in {run_folder}, a new run begins'}")
    return None if newest is None else str(newest)


class SaveConfig(Callback):
    """Writes ``config.yaml`` in the first round, so that a refused fit leaves the old one.

    A line with the version and the commit of the package precedes its text.
    """

    def __init__(self, text: str, path: Path) -> None:
        self._text, self._path, self._saved = text, path, False

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Write it once."""
        if trainer.is_global_zero and not self._saved:
            with atomic_write(self._path) as path:
                path.write_text(f"# fl-lightning {__version__}, commit {commit() or 'unknown'}\n{self._text}", encoding="utf-8")
            self._saved = True
