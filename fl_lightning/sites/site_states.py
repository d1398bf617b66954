"""The states of a site's client, each with a stamp by which the server refers to it."""

import secrets
from pathlib import Path

import torch

from fl_lightning.protocol import ClientState, pack, unpack
from fl_lightning.state.atomic_files import atomic_save, checked_load
from fl_lightning.state.state_files import reason

_KEPT = 20  # visits to which a server can return when it resumes
_NAMES = 1 << 48  # of runs; float64 holds them exactly


class SiteStates:
    """A client's states after its last 20 visits, in files, for each run.

    The server stores a stamp instead of the state: round and run, and empty weights with the names of those that the client
    keeps, which need not be sent to it. The run's number is drawn at the client's first visit that leaves a state. A resumed
    server sends the stamp in its checkpoint, and the visit starts from that state, even if the client has made further visits
    since.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, stamp: ClientState) -> ClientState:
        """The state of a stamp; empty for an empty one.

        Raises:
            ValueError: naming the file, if the site does not have that state, or not as it was written.
        """
        if not stamp:
            return ClientState()
        path = self._path(*self._parts(stamp))
        try:
            return unpack(ClientState, checked_load(path))
        except (ValueError, OSError) as error:
            problem = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read: {reason(error)}"
            raise ValueError(
                f"{path}, the client's state for the server's checkpoint, {problem}: put it back, resume from a later "
                "checkpoint, or begin a new run"
            ) from error

    def write(self, round: int, state: ClientState, before: ClientState) -> ClientState:
        """Write the state after a visit; returns its stamp, which is empty for an empty state.

        ``before`` is the stamp of the client's state before the visit.
        """
        if not state:
            return ClientState()
        run = self._parts(before)[1] if before else secrets.randbelow(_NAMES)
        atomic_save(pack(state.map(lambda tensor: tensor.detach().to("cpu", copy=True))), self._path(round, run))
        for old in sorted(self._path(round, run).parent.glob("*.pt"))[:-_KEPT]:
            old.unlink()
        # The server sees from the stamp whether the state is finite, as it would from the state.
        finite = all(bool(tensor.isfinite().all()) for tensor in state.tensors())
        stamp = torch.tensor([round, run], dtype=torch.float64) * (1 if finite else torch.nan)
        return ClientState(method={"stamp": stamp}, weights={name: torch.empty(0) for name in state.weights})

    def _parts(self, stamp: ClientState) -> tuple[int, int]:
        round, run = stamp.method["stamp"].tolist()
        return int(round), int(run)

    def _path(self, round: int, run: int) -> Path:
        return self._folder / f"{run:012x}" / f"{round:08d}.pt"
