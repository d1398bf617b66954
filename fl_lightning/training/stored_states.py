"""Where a run keeps its clients' states, and how they get into its checkpoints and out of them."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from fl_lightning.state.client_states import ClientStates, DiskStates, MemoryStates

_FILE_SYSTEM_DELAY = 3.0  # seconds in which a network file system shows a new file elsewhere


def open_client_states(trainer: Trainer, kind: str, folder: Path | None, saved: dict[str, Any] | None) -> ClientStates:
    """An empty store, or with what a checkpoint saved; all processes call it.

    Args:
        kind: ``memory`` or ``disk``.
        folder: where this run alone writes, if somebody says so.
        saved: of :func:`saved_client_states`.
    """
    states = _disk_states(trainer, folder) if kind == "disk" else MemoryStates()
    if saved is not None:
        states.restore(saved, trainer.global_rank, trainer.world_size)
    trainer.strategy.barrier()
    return states


def check_saved_states(saved: dict[str, Any], num_clients: int) -> None:
    """Check what a checkpoint stored of clients' states before anything is made of it.

    Raises:
        ValueError: if it is of no kind that there is, or of a client that the data does not have.
    """
    layouts = {"memory": {"states": dict}, "disk": {"folder": str, "index": torch.Tensor}}
    layout = layouts.get(str(saved.get("kind")))
    if layout is None or not all(isinstance(saved.get(name), kind) for name, kind in layout.items()):
        raise ValueError("ckpt_path holds client states of no known kind: give a checkpoint that a run wrote")
    clients = saved["states"] if saved["kind"] == "memory" else saved["index"][:, 0].tolist()
    if strangers := [client for client in clients if not 0 <= client < num_clients]:
        raise ValueError(
            f"ckpt_path holds the state of client {strangers[0]}, but data.num_clients is {num_clients}: "
            "give the data of that run"
        )


def saved_client_states(trainer: Trainer, states: ClientStates) -> dict[str, Any]:
    """What a checkpoint stores of all processes' states; files on disk that no checkpoint needs any more go."""
    if isinstance(states, DiskStates) and trainer.is_global_zero:
        states.sweep(_checkpoints(trainer))
    saved = states.checkpoint()
    if trainer.world_size == 1 or states.shared:
        return saved
    parts: list[Any] | None = [None] * trainer.world_size if trainer.is_global_zero else None
    torch.distributed.gather_object(saved["states"], parts)
    return {**saved, "states": {client: state for part in parts or () for client, state in part.items()}}


def _disk_states(trainer: Trainer, folder: Path | None) -> DiskStates:
    """In the run's folder; where none is known, in one next to it that no other run has."""
    stamp, folder = trainer.strategy.broadcast((time.time_ns(), folder))
    run: Path | str | None = folder
    if run is None and isinstance(trainer.logger, TensorBoardLogger | CSVLogger):  # with a folder for each run
        run = trainer.log_dir
    fallback = Path(trainer.default_root_dir) / f"client_states_{stamp:x}"
    folder = fallback if run is None else Path(run) / "client_states"
    if trainer.world_size > 1:
        _require_shared(folder, stamp, trainer)
    return DiskStates(folder, stamp)


def _require_shared(folder: Path, stamp: int, trainer: Trainer) -> None:
    """Check that every process sees what the first writes into a folder; all processes call it.

    Raises:
        OSError: naming the folder, in all processes, if one does not.
    """
    probe = folder / f".shared.{stamp:x}"
    if trainer.is_global_zero:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
    name = trainer.strategy.broadcast(str(folder.absolute()))
    deadline = time.monotonic() + _FILE_SYSTEM_DELAY
    while not probe.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    seen_by_all = trainer.strategy.reduce_boolean_decision(probe.exists())
    if trainer.is_global_zero:
        probe.unlink(missing_ok=True)
    if not seen_by_all:
        with suppress(OSError):  # not there, or not empty
            folder.rmdir()
        raise OSError(
            f"model.client_state is disk, but not every process sees what rank 0 writes to {name}: set "
            "trainer.default_root_dir to a full path that all machines share, or model.client_state to memory"
        )


def _checkpoints(trainer: Trainer) -> set[Path]:
    """Checkpoints that may be gone on from: all in the folders that this run writes them to, or came from."""
    written: set[Path] = getattr(trainer.strategy.checkpoint_io, "written", set())
    folders = {path.parent for path in written}
    savers = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]
    folders |= {Path(saver.dirpath) for saver in savers if saver.dirpath}
    if trainer.ckpt_path:
        folders.add(Path(trainer.ckpt_path).parent)
    return written | {file for folder in folders for file in folder.glob("*.ckpt")}
