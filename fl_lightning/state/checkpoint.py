"""Checkpoints that are written completely or not at all, and are unchanged when they are read."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any

from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor

from fl_lightning.checks import check_file
from fl_lightning.functional.aggregation import State
from fl_lightning.state.atomic_files import atomic_save, checked_load, stored_digest

# Parts of every run's checkpoints, on which evaluation and warm starts rely.
_LAYOUT = {
    "pytorch-lightning_version": str,
    "global_step": int,
    "epoch": int,
    "state_dict": dict,
    "federated": dict,
}
# Further parts for a fit that continues; ModelCheckpoint's save_weights_only leaves them out.
_OF_FITS = {"loops": dict, "callbacks": dict, "optimizer_states": list, "lr_schedulers": list}
PROGRESS: dict[str, tuple[str, type | UnionType]] = {
    "newest": ("newest", dict),
    "newest_rounds": ("newest_rounds", dict),
    "tuned_engine": ("tuned_engine", str | None),
    "began_from": ("began_from", dict | None),
    "evaluated_round": ("evaluation.round", int),
    "rounds_without_update": ("lost_rounds.count", int),
}
"""What a run has measured and counted: key in ``checkpoint["federated"]`` -> attribute of the method, and its type."""
_FEDERATED = {
    **{"client_states": dict, "settings": dict, "inputs": dict, "layout": int},
    **{key: kind for key, (_, kind) in PROGRESS.items()},
}
LAYOUT = 3  # of a checkpoint: a changed layout gets a new number


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes next to the final path and renames: a kill in between leaves the previous checkpoint.

    Lightning's writer uses the system's temporary folder, from which a file cannot be renamed across file systems. A
    checkpoint that is read is compared with its digest, and never contains code.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written: set[Path] = set()  # paths to which this process wrote, or tried to

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None) -> None:
        """Write a checkpoint.

        Raises:
            OSError: naming the file, if it cannot be written; a file of that name is then unchanged.
        """
        self.written.add(Path(path))
        atomic_save(checkpoint, path)

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint onto the CPU.

        Raises:
            OSError: if the file cannot be opened.
            ValueError: naming the file, if it is not a checkpoint of a run or has changed since it was written, or if code may
                be read.
        """
        refuse_code(weights_only)
        return read_checkpoint(path)


def read_checkpoint(path: str | os.PathLike[str], key: str = "ckpt_path", or_else: str = "") -> dict[str, Any]:
    """A checkpoint of a run, its tensors on the CPU.

    Args:
        key: the option that gives the path, for messages.
        or_else: a cure for a file of something else, where the option takes more than checkpoints.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: naming the file, if it is not a checkpoint of a run, has the layout of another version, or has changed since
            it was written.
    """
    check_file(key, path, "give a checkpoint of a run")
    try:
        checkpoint = checked_load(path)
    except ValueError as error:
        cure = f"give one of a run, or {or_else}" if or_else else "give an older one, or put it back from a copy"
        raise ValueError(f"{key} is {path}, which is not a checkpoint that can be read ({error}): {cure}") from error
    if isinstance(layout := _layout(checkpoint), int) and layout != LAYOUT:
        other, update = ("a later", "update fl-lightning, or ") if layout > LAYOUT else ("an earlier", "")
        raise ValueError(
            f"{key} is {path}, which {other} version of fl-lightning wrote (layout {layout}, this one reads {LAYOUT}): "
            f"{update}give a checkpoint of this version"
        )
    misfit = (
        _first_misfit(checkpoint, _LAYOUT)
        or _first_misfit(checkpoint, {k: v for k, v in _OF_FITS.items() if k in checkpoint})
        or _first_misfit(checkpoint["federated"], _FEDERATED)
        or _first_misfit(checkpoint["state_dict"], dict.fromkeys(checkpoint["state_dict"], Tensor), "state_dict.")
    )
    if misfit is not None:
        cure = f"give a checkpoint of one{or_else and f', or {or_else}'}"
        raise ValueError(f"{key} is {path}, which no run of fl-lightning wrote ({misfit}): {cure}")
    if stored_digest(path) is None:
        raise ValueError(
            f"{key} is {path}, which has lost the digest of its run: give an older one, or put it back from a copy"
        )
    return checkpoint


def check_whole(checkpoint: dict[str, Any]) -> None:
    """Check that a fit can continue from a checkpoint.

    Raises:
        ValueError: if it holds only weights.
    """
    if absent := [name for name in _OF_FITS if name not in checkpoint]:
        raise ValueError(
            f"ckpt_path holds only weights (it lacks {absent[0]}), from which no fit can resume: give a checkpoint without "
            "save_weights_only, or begin a new run from its weights with model.initial_weights"
        )


def weights_of_net(checkpoint: dict[str, Any]) -> State:
    """The weights and buffers of the net in a checkpoint, by the net's names."""
    stored = checkpoint["state_dict"].items()
    return {name.removeprefix("net."): tensor for name, tensor in stored if name.startswith("net.")}


def refuse_code(weights_only: bool | None) -> None:
    """Check ``weights_only``, Lightning's option to run the code in a checkpoint.

    Raises:
        ValueError: if it is false.
    """
    if weights_only is False:
        raise ValueError(
            "weights_only is false, with which a checkpoint could run any code: leave it out, no checkpoint of a run needs it"
        )


def _layout(checkpoint: Any) -> Any:
    federated = checkpoint.get("federated") if isinstance(checkpoint, dict) else None
    return federated.get("layout") if isinstance(federated, dict) else None


def _first_misfit(stored: Any, layout: Mapping[str, type | UnionType], prefix: str = "") -> str | None:
    """The first difference of a container of the checkpoint from ``layout``, in words; None: there is none."""
    if not isinstance(stored, dict):
        return f"it holds a {type(stored).__name__}"
    for name, kind in layout.items():
        if name not in stored:
            return f"it lacks {prefix}{name}"
        if not isinstance(stored[name], kind):
            return f"its {prefix}{name} is a {type(stored[name]).__name__}"
    return None
