"""Checkpoints that are there whole or not at all."""

import os
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from lightning.pytorch.plugins.io import TorchCheckpointIO

from fl_lightning.atomic import atomic_save


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the final place and renames: a kill in the middle leaves the checkpoint before.

    Lightning's own writer uses the system's temporary folder, from where a file cannot be renamed across file systems.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written: set[Path] = set()  # where this process wrote or tried to

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None) -> None:
        """Write a checkpoint.

        Raises:
            OSError: naming the file, if it cannot be written; the file of that name is then as it was.
        """
        self.written.add(Path(path))
        atomic_save(checkpoint, path)

    def load_checkpoint(self, path: str | os.PathLike[str], *arguments: Any, **options: Any) -> dict[str, Any]:
        """Read a checkpoint.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: naming the file, if it is none.
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"ckpt_path is {path}, which does not exist: give a checkpoint of a run")
        try:
            return super().load_checkpoint(path, *arguments, **options)
        except (RuntimeError, UnpicklingError, EOFError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise ValueError(
                f"ckpt_path is {path}, which is no checkpoint that can be read ({reason}): give another"
            ) from error
