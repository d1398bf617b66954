"""The folder ``version_N`` that a fit writes to: claimed before the run begins, taken away where it never did."""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

from fl_lightning.state.versions import next_version


class VersionFolder:
    """A folder that no other run has, or that of the checkpoint a run goes on from.

    Args:
        run_folder: where the versions of the run lie.
        ckpt_path: file of the checkpoint; None for a new run.
        root: ``trainer.default_root_dir``, as errors name it.

    Raises:
        OSError: if the folder cannot be made; then none of its parents is left either.
    """

    def __init__(self, run_folder: Path, ckpt_path: str | None, root: str) -> None:
        self.path = next_version(run_folder)
        self._made: list[Path] = []  # folders that this run made, innermost first
        if ckpt_path is not None and run_folder.resolve() in Path(ckpt_path).resolve().parents:
            self.path = run_folder / Path(ckpt_path).resolve().relative_to(run_folder.resolve()).parts[0]
        elif rank_zero_only.rank == 0:  # the others never write to it, and are told its name where they ask
            self._make(run_folder, root)

    def _make(self, run_folder: Path, root: str) -> None:
        while not self._made:
            missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            try:
                self.path.mkdir(parents=True)
                self._made = missing
            except OSError as error:
                if not isinstance(error, FileExistsError):
                    raise _no_folder(missing, root, error) from error
                self.path = next_version(run_folder)

    def remove(self) -> None:
        """Take away the folders that this run made, if it did."""
        if self._made:
            shutil.rmtree(self.path, ignore_errors=True)
        for folder in self._made[1:]:
            with suppress(OSError):  # another run has something there
                folder.rmdir()


def _no_folder(missing: Sequence[Path], root: str, error: OSError) -> OSError:
    for folder in missing:
        with suppress(OSError):  # it was not made either
            folder.rmdir()
    return OSError(
        f"trainer.default_root_dir is {root}, where {error.filename} cannot be made ({error.strerror}): give another"
    )
