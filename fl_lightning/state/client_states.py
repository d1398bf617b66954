"""Storage of clients' states between visits: in memory, or on disk with one file per state.

A round writes new states next to the old ones and commits them at its end; a checkpoint in between has the old ones. On disk a
state is never overwritten: each write makes a new file, a checkpoint stores only the file of each client and its digest, and a
file is deleted once no checkpoint names it. So a run that is killed at any time continues from any of its checkpoints, with
exactly their states.
"""

import os
import re
import shutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from time import time_ns
from typing import Any

import torch
from rich.filesize import decimal

from fl_lightning.checks import machine_memory
from fl_lightning.functional.aggregation import State
from fl_lightning.functional.transfers import kept, to_host
from fl_lightning.protocol import ClientState, pack, unpack
from fl_lightning.state.atomic_files import atomic_save, checked_load, naming_folder, stored_digest, sync_folder
from fl_lightning.state.state_files import Record, link_file, named_records, naming_state, reason, saved_digests

_FILE = re.compile(r"\.?(\d+)\.(\d+)\.([0-9a-f]+)\.pt(\.tmp)?")  # as Record.name, or the rest of a killed write


class ClientStates(ABC):
    """A store of clients' states between visits. Tensors can come from any device; they are stored and returned on the CPU."""

    shared: bool
    """Whether every process can read the states that others wrote; if not, only one process has a client's state."""

    @abstractmethod
    def clients(self) -> list[int]:
        """Clients with a committed state here."""

    @abstractmethod
    def read(self, client: int) -> ClientState:
        """A copy of the committed state; empty for a client without one.

        Raises:
            ValueError: naming the file, if it cannot be read or has changed since it was written.
        """

    @abstractmethod
    def write(self, client: int, round: int, state: ClientState) -> None:
        """Copy a client's new state, which counts once the round is committed; after an empty one it keeps nothing.

        Raises:
            OSError: naming the file, if it cannot be written.
        """

    @abstractmethod
    def commit(self, round: int, clients: Iterable[int], cleared: Iterable[int] = ()) -> None:
        """End a round: take over the new states of some clients; all others keep their old ones.

        Every process commits the same clients, no matter which process wrote their states.

        Args:
            clients: clients with a new state that counts; a process has written each in this round.
            cleared: clients that keep nothing from now on, with an empty state written or none.
        """

    @abstractmethod
    def checkpoint(self) -> dict[str, Any]:
        """The part of a checkpoint, of only containers and tensors; shares memory. Every process must call it every time."""

    @abstractmethod
    def restore(self, saved: dict[str, Any], process: int = 0, num_processes: int = 1) -> None:
        """Replace all states by those of a checkpoint of either kind; shares memory with it.

        Each of several processes works for the clients that it owns (``client % num_processes == process``): all must have
        restored before one of them reads.

        Raises:
            FileNotFoundError: naming the folder, if files of the checkpoint are missing in it.
            OSError: naming the file, if one cannot be written.
        """

    @abstractmethod
    def require_space(self, num_clients: int, bytes_per_client: int) -> str:
        """One line with the memory that the states of this many clients will take, of all processes together.

        Raises:
            OSError: if the disk has too little space for those that are not on it yet.
            MemoryError: if the machine has too little memory.
        """


class MemoryStates(ClientStates):
    """Keeps states in memory; each process has, and saves, only those that it wrote or restored."""

    shared = False

    def __init__(self) -> None:
        self._states: dict[int, ClientState] = {}  # tensors in here and in _written are replaced, never changed
        self._written: dict[int, ClientState] = {}

    def clients(self) -> list[int]:
        return list(self._states)

    def read(self, client: int) -> ClientState:
        return _copied(self._states.get(client, ClientState()))

    def write(self, client: int, round: int, state: ClientState) -> None:
        # Without a wait: the host waits for the device's report of a round before the round is committed.
        self._written[client] = state.map(to_host)

    def commit(self, round: int, clients: Iterable[int], cleared: Iterable[int] = ()) -> None:
        taken = {client: self._written[client].map(kept) for client in clients if client in self._written}
        self._states |= taken
        for client in (*cleared, *(client for client, state in taken.items() if not state)):
            self._states.pop(client, None)
        self._written = {}

    def checkpoint(self) -> dict[str, Any]:
        return {"kind": "memory", "states": {client: pack(state) for client, state in self._states.items()}}

    def restore(self, saved: dict[str, Any], process: int = 0, num_processes: int = 1) -> None:
        if saved["kind"] == "memory":
            clients = saved["states"]

            def read(client: int) -> ClientState:
                return unpack(ClientState, saved["states"][client])

        else:
            source = DiskStates(Path(saved["folder"]))
            source.restore(saved)
            clients, read = source.clients(), source.read
        self._states = {client: read(client) for client in clients if client % num_processes == process}
        self._written = {}

    def require_space(self, num_clients: int, bytes_per_client: int) -> str:
        memory, need = machine_memory(), _product(num_clients, bytes_per_client)
        if num_clients * bytes_per_client > memory:
            raise MemoryError(
                f"model.client_state is memory, but up to {need} do not fit into this machine's {decimal(int(memory))}: "
                "set model.client_state: disk"
            )
        return f"client state: up to {need} in memory"


class DiskStates(ClientStates):
    """Keeps each state in a file that all processes see, and in memory only the file of each client.

    In addition to one file per client there are those that older checkpoints name. Opening a store changes nothing on disk.

    Args:
        folder: folder of the files, of one run at a time; it need not exist.
        stamp: distinguishes this run's files from those of an earlier run that continued from the same checkpoint; the same in
            all processes, new in every run. The default, the time, is enough for one process.
    """

    shared = True

    def __init__(self, folder: Path, stamp: int | None = None) -> None:
        self.folder = Path(folder)
        self._stamp = time_ns() if stamp is None else stamp
        self._index: dict[int, Record] = {}
        self._digests: dict[int, int] = {}  # of clients' files, as written or as in a checkpoint
        self._unshared: set[int] = set()  # clients whose file this process wrote after it last shared digests
        self._written: dict[int, tuple[Record, int | None] | None] = {}  # by this process in this round; None: an empty state
        self._round = self._saved_round = 0  # last committed one, and last one that a checkpoint can name
        self._named: dict[Path, tuple[tuple[int, ...], set[Record]]] = {}  # by checkpoint: its version, and its files

    def clients(self) -> list[int]:
        return list(self._index)

    def read(self, client: int) -> ClientState:
        record = self._index.get(client)
        if record is None:
            return ClientState()
        path = self.folder / record.name
        digest = self._digest(record)
        with naming_state(self.folder, record):
            stored = checked_load(path, digest=digest)
        try:
            return unpack(ClientState, stored)
        except ValueError as error:
            raise ValueError(
                f"{path}, the state of client {client} from round {record.round}, cannot be read ({error}), as if another "
                "version of fl-lightning wrote it: begin a new run from the checkpoint's weights with model.initial_weights"
            ) from error

    def write(self, client: int, round: int, state: ClientState) -> None:
        record = Record(client, round, self._stamp)
        self._written[client] = (record, self._save(record, state)) if state else None

    def _save(self, record: Record, state: ClientState) -> int:
        """Write a file; returns its digest."""
        # A copy, as a view would be saved with all of its base. Its name must last only once a checkpoint has it.
        return atomic_save(pack(_copied(state)), self.folder / record.name, lasting=False)

    def commit(self, round: int, clients: Iterable[int], cleared: Iterable[int] = ()) -> None:
        taken = {client: self._written.pop(client, (Record(client, round, self._stamp), None)) for client in clients}
        taken |= dict.fromkeys(cleared)
        outdated = [self._index.pop(client) for client in taken if client in self._index]
        for client, written in taken.items():
            self._digests.pop(client, None)
            self._unshared.discard(client)
            if written is not None:
                self._index[client], digest = written
                if digest is not None:
                    self._digests[client] = digest
                    self._unshared.add(client)
        forgotten = [written[0] for written in self._written.values() if written is not None]
        # Files that a checkpoint can name are left to sweep.
        unsaved = [record for record in outdated if record.stamp == self._stamp and record.round > self._saved_round]
        for record in (*forgotten, *unsaved):
            (self.folder / record.name).unlink(missing_ok=True)
        self._written, self._round = {}, round

    def checkpoint(self) -> dict[str, Any]:
        new = [record for record in self._index.values() if record.stamp == self._stamp and record.round > self._saved_round]
        self._saved_round = self._round
        self._sync_folders(new)
        index = torch.tensor(list(self._index.values()), dtype=torch.int64).reshape(-1, 3)
        digests = torch.tensor(list(map(self._digest, self._index.values())), dtype=torch.int64)
        return {"kind": "disk", "folder": str(self.folder.absolute()), "index": index, "digests": digests}

    def _digest(self, record: Record) -> int:
        """The digest of a client's file; until another process has shared it, as stored in the file."""
        if record.client not in self._digests:
            with naming_state(self.folder, record):
                if (digest := stored_digest(self.folder / record.name)) is None:
                    raise ValueError("the digest with which it was written is gone")
            self._digests[record.client] = digest
        return self._digests[record.client]

    def share_digests(self, gather: Callable[[State], list[State]]) -> None:
        """Get the digests of the files that other processes wrote; all must call it before a checkpoint.

        Args:
            gather: returns the tensors of every process, by name.
        """
        mine = torch.tensor([[client, self._digests[client]] for client in self._unshared], dtype=torch.int64).reshape(-1, 2)
        for part in gather({"digests": mine}):
            self._digests |= dict(part["digests"].tolist())
        self._unshared.clear()

    def _sync_folders(self, records: Iterable[Record]) -> None:
        with naming_folder(self.folder):
            for folder in {(self.folder / record.name).parent for record in records}:
                sync_folder(folder)

    def restore(self, saved: dict[str, Any], process: int = 0, num_processes: int = 1) -> None:
        """Files of another folder are linked or copied into this one, so that the other can be deleted."""
        self._stamp += 1  # rounds can come again, with other states
        if saved["kind"] == "disk":
            records, written = named_records(saved), {}
            self._import(records, Path(saved["folder"]), process, num_processes)
        else:
            records = [Record(client, 0, self._stamp) for client in saved["states"]]
            mine = [record for record in records if record.client % num_processes == process]
            states = {record: unpack(ClientState, saved["states"][record.client]) for record in mine}
            written = {record.client: self._save(record, state) for record, state in states.items()}
            self._sync_folders(mine)
        self._index, self._written = {record.client: record for record in records}, {}
        self._digests, self._unshared = saved_digests(saved) | written, set(written)
        self._round = self._saved_round = 0  # of this stamp's rounds

    def _import(self, records: list[Record], source: Path, process: int, num_processes: int) -> None:
        """Bring in the records that are not here from the folder in which they were written."""
        # A listing instead of a system call for each of perhaps 100,000 files.
        here = {f"{part.name}/{name}" for part in self.folder.glob("*/") for name in os.listdir(part)}
        absent = [record for record in records if record.name not in here]
        if lost := [record for record in absent if not (source / record.name).exists()]:
            raise FileNotFoundError(
                f"ckpt_path names {len(records)} files of client state, but {source} lacks {len(lost)} (first: "
                f"{lost[0].name}): put them back, or give another ckpt_path"
            )
        mine = [record for record in absent if record.client % num_processes == process]
        with naming_folder(self.folder):
            for record in mine:
                link_file(source / record.name, self.folder / record.name)
        self._sync_folders(mine)

    def require_space(self, num_clients: int, bytes_per_client: int) -> str:
        """To be called after :meth:`restore`: states that are on disk need no more space."""
        parent = next(folder for folder in (self.folder, *self.folder.absolute().parents) if folder.exists())
        free, present = shutil.disk_usage(parent).free, len(self._index)
        need = _product(num_clients, bytes_per_client)
        if (num_clients - present) * bytes_per_client > free:
            raise OSError(
                f"model.client_state is disk, but up to {need} ({present:,} clients are there) do not fit into the "
                f"{decimal(free)} that are free for {self.folder}: free some space, or set trainer.default_root_dir to "
                "where there is more"
            )
        return f"client state: up to {need} on disk in {self.folder}"

    def sweep(self, checkpoints: Collection[Path]) -> None:
        """Delete the files that neither this run nor one of these checkpoints needs, and the rest of killed writes.

        Only for the first process, while a checkpoint is being made: files of the one that it will replace are kept until the
        next time. A checkpoint that is not in the list loses its files. One that is gone needs none; if one cannot be read,
        there is a warning and all files stay.
        """
        keep = set(self._index.values())
        for path in checkpoints:
            try:
                keep |= self._named_by(path)
            except FileNotFoundError:
                continue
            except Exception as error:  # a file with such a name can have any content
                warnings.warn(
                    f"{path} cannot be read ({reason(error)}): while it is there, no file in {self.folder} is deleted",
                    stacklevel=2,
                )
                return
        self._named = {path: named for path, named in self._named.items() if path in checkpoints}  # others are gone for good
        for record, path in self._files():
            is_provisional = record.stamp == self._stamp and record.round > self._round  # possibly of another process
            if not is_provisional and (record not in keep or path.endswith(".tmp")):
                with suppress(OSError):  # a file that is left does no harm
                    os.unlink(path)

    def _named_by(self, checkpoint: Path) -> set[Record]:
        """The files that a checkpoint names; it is read once, until another replaces it."""
        status = checkpoint.stat()
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        known, named = self._named.get(checkpoint, (None, set()))
        if known != version:
            stored = checked_load(checkpoint, mmap=True)
            named = set(named_records(stored.get("federated", {}).get("client_states", {})))
            self._named[checkpoint] = version, named
        return named

    def _files(self) -> Iterator[tuple[Record, str]]:
        """All files of states; those whose writing has not ended end in ``.tmp``."""
        for folder in self.folder.glob("*/"):
            for name in os.listdir(folder):
                if match := _FILE.fullmatch(name):
                    yield Record(int(match[1]), int(match[2]), int(match[3], 16)), f"{folder}/{name}"


def _copied(state: ClientState) -> ClientState:
    return state.map(lambda tensor: tensor.detach().to("cpu", copy=True))


def _product(num_clients: int, bytes_per_client: int) -> str:
    return f"{num_clients:,} clients x {decimal(bytes_per_client)} = {decimal(num_clients * bytes_per_client)}"
