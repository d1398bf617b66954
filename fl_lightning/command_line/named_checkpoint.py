"""The checkpoint that ``ckpt_path`` names: a file, or ``last``, ``best`` and ``last_if_any`` of a run's newest version."""

from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

from fl_lightning.state.versions import KEPT, Kept, newest_checkpoint

# What ckpt_path may be instead of a file -> name of the checkpoint in the newest version.
NAMED: dict[str, Kept] = {**{name: name for name in KEPT}, "last_if_any": "last"}


def find_checkpoint(ckpt_path: str, run_folder: Path, may_begin: bool) -> str | None:
    """A checkpoint file from a path or a name, said on the screen.

    Args:
        ckpt_path: the file, or ``last``, ``best`` or ``last_if_any`` of the newest version.
        run_folder: where the versions of the run lie.
        may_begin: whether ``last_if_any`` may find none.

    Returns:
        The file; None to begin a new run.

    Raises:
        FileNotFoundError: if there is no such checkpoint.
    """
    if ckpt_path not in NAMED:
        if not Path(ckpt_path).is_file():
            raise FileNotFoundError(f"ckpt_path is {ckpt_path}, which does not exist: give {', '.join(NAMED)} or a file")
        return ckpt_path
    newest = newest_checkpoint(run_folder, NAMED[ckpt_path], ckpt_path)
    if newest is None and not (ckpt_path == "last_if_any" and may_begin):
        raise FileNotFoundError(
            f"ckpt_path is {ckpt_path}, but {run_folder} holds no such checkpoint: "
            "leave ckpt_path out to start anew, or set trainer.default_root_dir to where the run lies"
        )
    rank_zero_only(print)(f"ckpt_path is {ckpt_path}: {newest or f'none in {run_folder}, a new run begins'}")
    return None if newest is None else str(newest)
