"""The versions of a run: its folders ``version_0``, ``version_1``, ..., one per fit, and the checkpoints in them."""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

from lightning.pytorch.utilities import rank_zero_only

from fl_lightning.checks import counted
from fl_lightning.state.checkpoint import read_checkpoint

Kept = Literal["last", "best"]  # of a run's checkpoints
KEPT: tuple[Kept, ...] = get_args(Kept)


def versions(run_folder: Path) -> list[Path]:
    """The versions in the order of their numbers, which is that of their beginnings."""
    numbered = {path: re.fullmatch(r"version_(\d+)", path.name) for path in run_folder.glob("version_*")}
    return sorted((path for path, match in numbered.items() if match), key=_number)


def next_version(run_folder: Path) -> Path:
    """The folder of the next version."""
    present = versions(run_folder)
    return run_folder / f"version_{_number(present[-1]) + 1 if present else 0}"


class VersionFolder:
    """A folder that no other run has, or that of the checkpoint from which a run continues.

    Args:
        ckpt_path: file of the checkpoint; None for a new run.
        root: ``trainer.default_root_dir``, for errors.

    Raises:
        OSError: if the folder cannot be made; new parents are then removed too.
    """

    def __init__(self, run_folder: Path, ckpt_path: str | None, root: str) -> None:
        try:
            self.path = next_version(run_folder)
        except OSError as error:
            raise _no_folder([], root, error) from error
        self._made: list[Path] = []  # folders that this run made, innermost first
        parents = [] if ckpt_path is None else Path(ckpt_path).resolve().parents
        if own := [version for version in versions(run_folder) if version.resolve() in parents]:
            (self.path,) = own
        elif rank_zero_only.rank == 0:  # the others never write to it, and get its name when they need it
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

    @contextmanager
    def removed_unless(self, begun: Callable[[], bool]) -> Iterator[None]:
        """Remove the folder after an error or a signal in the block if the run has not begun."""
        try:
            yield
        except BaseException:  # Ctrl-C and SIGTERM too
            if not begun():
                self.remove()
            raise

    def remove(self) -> None:
        """Remove the folders that this run made."""
        if self._made:
            shutil.rmtree(self.path, ignore_errors=True)
        for folder in self._made[1:]:
            with suppress(OSError):  # another run uses it
                folder.rmdir()


def _no_folder(missing: Sequence[Path], root: str, error: OSError) -> OSError:
    for folder in missing:
        with suppress(OSError):  # it was not made either
            folder.rmdir()
    return OSError(
        f"trainer.default_root_dir is {root}, where {error.filename} cannot be made ({error.strerror}): give another"
    )


def newest_checkpoint(run_folder: Path, name: Kept, ckpt_path: str) -> Path | None:
    """The checkpoint of the newest version; None if no version has one.

    Args:
        ckpt_path: the user's text, for messages.

    Raises:
        FileNotFoundError: if an older version has one, but the newest does not; or the newest has only ``last``.
    """
    present = versions(run_folder)
    if not present:
        return None
    found = [path for version in present if (path := version / "checkpoints" / f"{name}.ckpt").exists()]
    newest = present[-1] / "checkpoints"
    if newest / f"{name}.ckpt" in found:
        return newest / f"{name}.ckpt"
    said = f"ckpt_path is {ckpt_path}, but {present[-1]}, the newest version, has no {name}.ckpt"
    older = f", or give the path of an older version's, {found[-1]}" if found else ""
    if (newest / "last.ckpt").exists():
        raise FileNotFoundError(f"{said}, as it ran without validation or on tasks: use last{older}")
    if found:
        raise FileNotFoundError(f"{said}: remove that folder{older}")
    return None


def is_complete(version: Path, ckpt_path: str | None, max_steps: int) -> bool:
    """Whether a version has all of ``max_steps`` rounds, with its last record, and the checkpoint is its last one.

    Raises:
        ValueError: if the checkpoint is of this version and the version has more than ``max_steps`` rounds, which would be
            lost.
    """
    if ckpt_path is None or version.resolve() not in Path(ckpt_path).resolve().parents:
        return False
    last = version / "checkpoints" / "last.ckpt"
    # A checkpoint can take seconds to read: that of ckpt_path is read later, and its rounds are checked then.
    if last.is_file() and not last.samefile(ckpt_path) and (rounds := read_checkpoint(last)["global_step"]) > max_steps:
        raise ValueError(
            f"trainer.max_steps is {max_steps}, but {version} has {counted(rounds, 'round')} already, which would be "
            "lost: raise it, or copy the checkpoint of ckpt_path to another folder"
        )
    results = version / "results.json"
    try:
        recorded = json.loads(results.read_text(encoding="utf-8"))["rounds"] if results.is_file() else None
    except (json.JSONDecodeError, KeyError, TypeError):
        return False  # a fit of no more rounds writes the missing part
    return recorded == max_steps and read_checkpoint(ckpt_path)["global_step"] == max_steps


def _number(version: Path) -> int:
    return int(version.name.removeprefix("version_"))
