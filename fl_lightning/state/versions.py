"""The versions of a run: its folders ``version_0``, ``version_1``, ..., one a fit, and the checkpoints in them."""

import json
import re
from pathlib import Path
from typing import Literal, get_args

from fl_lightning.state.checkpoint import read_checkpoint

Kept = Literal["last", "best"]  # of a run's checkpoints
KEPT: tuple[Kept, ...] = get_args(Kept)


def versions(run_folder: Path) -> list[Path]:
    """The versions in the order of their numbers, in which they were begun."""
    numbered = {path: re.fullmatch(r"version_(\d+)", path.name) for path in run_folder.glob("version_*")}
    return sorted((path for path, match in numbered.items() if match), key=_number)


def next_version(run_folder: Path) -> Path:
    """The folder of a version that is newer than all others."""
    present = versions(run_folder)
    return run_folder / f"version_{_number(present[-1]) + 1 if present else 0}"


def newest_checkpoint(run_folder: Path, name: Kept, ckpt_path: str) -> Path | None:
    """The checkpoint of the newest version; None if no version has one.

    Args:
        ckpt_path: as the user gave it, for messages.

    Raises:
        FileNotFoundError: if an older version has one, but the newest has none: which of them is meant?
    """
    present = versions(run_folder)
    found = [path for version in present if (path := version / "checkpoints" / f"{name}.ckpt").exists()]
    if found and found[-1].parent.parent != present[-1]:
        raise FileNotFoundError(
            f"ckpt_path is {ckpt_path}, but {present[-1]}, the newest version, has no {name}.ckpt: remove that folder, or give "
            f"the path of an older version's, {found[-1]}"
        )
    return found[-1] if found else None


def is_complete(version: Path, ckpt_path: str | None, max_steps: int) -> bool:
    """Whether a version has been fitted for ``max_steps`` rounds up to its last record, and the checkpoint is its last.

    Raises:
        ValueError: if the checkpoint is of this version, which has more than ``max_steps`` rounds: they would be lost.
    """
    if ckpt_path is None or version.resolve() not in Path(ckpt_path).resolve().parents:
        return False
    last = version / "checkpoints" / "last.ckpt"
    # A checkpoint may take seconds to read: that of ckpt_path will be read, and then holds itself to its rounds.
    if last.is_file() and not last.samefile(ckpt_path) and (rounds := read_checkpoint(last)["global_step"]) > max_steps:
        raise ValueError(
            f"trainer.max_steps is {max_steps}, but {version} has {rounds} rounds already, which would be lost: raise it, or "
            "copy the checkpoint of ckpt_path to another folder"
        )
    try:
        recorded = json.loads((version / "results.json").read_text(encoding="utf-8"))["rounds"]
    except (FileNotFoundError, json.JSONDecodeError, KeyError, TypeError):
        return False  # what is missing is written by a fit of no more rounds
    return recorded == max_steps and read_checkpoint(ckpt_path)["global_step"] == max_steps


def _number(version: Path) -> int:
    return int(version.name.removeprefix("version_"))
