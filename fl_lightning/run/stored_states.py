"""The store of a run's client states, which its checkpoints save and restore."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from fl_lightning.functional.aggregation import State
from fl_lightning.processes.process_group import ProcessGroup
from fl_lightning.protocol import pack, unpack
from fl_lightning.run.record import run_folder
from fl_lightning.state.client_states import ClientStates, DiskStates, MemoryStates
from fl_lightning.state.state_files import states_folder

_FILE_SYSTEM_DELAY = 3.0  # seconds in which a network file system shows a new file elsewhere


class StoredStates:
    """The client states of a run: ``states``, a store in memory until one is opened elsewhere."""

    def __init__(self) -> None:
        self.states: ClientStates = MemoryStates()
        self._of_checkpoint: dict[str, Any] | None = None  # until there is a store for it
        self._left_out = False  # those of the checkpoint from which the method was loaded, without data

    def take(self, saved: dict[str, Any], num_clients: int) -> None:
        """Give the next store the states of a checkpoint.

        Raises:
            ValueError: if their kind is unknown, or the data does not have one of their clients.
        """
        layouts = {"memory": {"states": dict}, "disk": {"folder": str, "index": torch.Tensor, "digests": torch.Tensor}}
        layout = layouts.get(str(saved.get("kind")))
        if layout is None or not all(isinstance(saved.get(name), kind) for name, kind in layout.items()):
            raise ValueError("ckpt_path holds client states of an unknown kind: give a checkpoint that a run wrote")
        clients = saved["states"] if saved["kind"] == "memory" else saved["index"][:, 0].tolist()
        if strangers := [client for client in clients if not 0 <= client < num_clients]:
            raise ValueError(
                f"ckpt_path holds the state of client {strangers[0]}, but data.num_clients is {num_clients}: "
                "give the data of that run"
            )
        self._of_checkpoint, self._left_out = saved, False

    def leave_out(self) -> None:
        """Note that the method comes from a checkpoint without its clients' states: no client can be evaluated."""
        self._left_out = True

    def open(self, trainer: Trainer, kind: str, folder: Path | None) -> None:
        """Begin a store, empty or with the states of a checkpoint; all processes call it.

        Args:
            kind: ``memory`` or ``disk``.
            folder: the folder of only this run, if one is named.
        """
        self.states = _disk_states(trainer, folder) if kind == "disk" else MemoryStates()
        if (saved := self._of_checkpoint) is not None:
            if saved["kind"] == "disk" and trainer.ckpt_path:
                saved = {**saved, "folder": str(states_folder(saved, Path(trainer.ckpt_path)))}
            self.states.restore(saved, trainer.global_rank, trainer.world_size)
        self._of_checkpoint, self._left_out = None, False
        trainer.strategy.barrier()

    def open_for_evaluation(self, trainer: Trainer) -> None:
        """Begin a store in memory with the states of a checkpoint, without a fit.

        Raises:
            ValueError: if clients are to be evaluated, and the method was loaded without their states.
        """
        if self._left_out and trainer.state.fn in ("validate", "test"):
            raise ValueError(
                f"trainer.{trainer.state.fn.value} evaluates clients' models, but the method was loaded without their states: "
                "give it the checkpoint as ckpt_path"
            )
        if self._of_checkpoint is not None and trainer.state.fn != "fit":
            self.open(trainer, "memory", None)

    def saved(self, trainer: Trainer) -> dict[str, Any]:
        """All processes' states for a checkpoint; deletes files on disk that no checkpoint needs any more."""
        if isinstance(self.states, DiskStates):
            if trainer.is_global_zero:
                self.states.sweep(_checkpoints(trainer))
            self.states.share_digests(ProcessGroup.of(trainer).gather)
        saved = self.states.checkpoint()
        if trainer.world_size == 1 or self.states.shared:
            return saved
        group, mine = ProcessGroup.of(trainer), pack(saved["states"])
        parts = group.exchange([mine if rank == 0 else {} for rank in range(group.size)])
        states = [unpack(dict[int, State], part) for part in parts]
        return {**saved, "states": {client: state for part in states for client, state in part.items()}}


def _disk_states(trainer: Trainer, folder: Path | None) -> DiskStates:
    """A folder in the run's folder or, if none is known, a new one next to it for only this run."""
    run = run_folder(trainer, folder)
    stamp, run = ProcessGroup.of(trainer).broadcast((time.time_ns(), None if run is None else str(run)))
    folder = Path(trainer.default_root_dir) / f"client_states_{stamp:x}" if run is None else Path(run) / "client_states"
    if trainer.world_size > 1:
        _require_shared(folder, stamp, trainer)
    return DiskStates(folder, stamp)


def _require_shared(folder: Path, stamp: int, trainer: Trainer) -> None:
    """Check that every process sees the files of the first process in a folder; all processes call it.

    Raises:
        OSError: naming the folder, in all processes, if one does not.
    """
    probe = folder / f".shared.{stamp:x}"
    if trainer.is_global_zero:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
    name = ProcessGroup.of(trainer).broadcast(str(folder.absolute()))
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
    """Checkpoints from which a fit can resume: all in the folders to which this run writes them, or from which it came."""
    written: set[Path] = getattr(trainer.strategy.checkpoint_io, "written", set())
    folders = {path.parent for path in written}
    savers = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]
    folders |= {Path(saver.dirpath) for saver in savers if saver.dirpath}
    if trainer.ckpt_path:
        folders.add(Path(trainer.ckpt_path).parent)
    return written | {file for folder in folders for file in folder.glob("*.ckpt")}
