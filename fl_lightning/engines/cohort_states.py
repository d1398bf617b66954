"""CohortStates: the states of a cohort's clients, on their way to the engine that fits them and back."""

from collections.abc import Sequence

import torch

from fl_lightning.engines.ranks import Ranks
from fl_lightning.functional.transfers import to_device, to_host
from fl_lightning.protocol import ClientState, pack, unpack
from fl_lightning.state.client_states import ClientStates


class CohortStates:
    """States of clients, for the engine of one process.

    If not every process reads them all, a client's state is stored by its owner, process ``client % processes``: it comes here
    before the cohort's fits and goes back after them.
    """

    def __init__(self, states: ClientStates, ranks: Ranks, device: torch.device) -> None:
        self._states, self._ranks, self._device = states, ranks, device
        self._move = ranks.size > 1 and not states.shared
        self._somebody_keeps: bool | None = None  # in any process, now or before; None: not asked yet
        self._received: dict[int, ClientState] = {}  # from their owners, of clients that are fitted here in this round
        self._made: dict[int, ClientState] = {}  # here in this round, for their owners

    def fetch(self, clients: Sequence[Sequence[int]]) -> None:
        """Before the fits: bring the states of this process's clients here; ``clients`` are those of each process.

        If no client has ever kept anything, the processes exchange nothing.
        """
        if not self._move:
            return
        self._made = {}
        if self._somebody_keeps is None:
            num_kept = torch.tensor(float(len(self._states.clients())), device=self._device)
            self._somebody_keeps = bool(self._ranks.sum(num_kept))
        if not self._somebody_keeps:
            return
        owned = [[client for client in part if self._owner(client) == self._ranks.rank] for part in clients]
        self._received = self._exchange([{client: self._states.read(client) for client in part} for part in owned])

    def read(self, client: int) -> ClientState:
        """A client's state before its fit, on the device."""
        state = self._received.get(client, ClientState()) if self._move else self._states.read(client)
        return state.map(lambda tensor: to_device(tensor, self._device))

    def write(self, round: int, client: int, state: ClientState) -> None:
        """Copy a client's state after its fit."""
        if self._move:
            self._made[client] = state.map(to_host)
        else:
            self._states.write(client, round, state)

    def send(self, round: int, keeps_any: bool) -> None:
        """After the fits: let the owners write the states that were made here, if any process made some."""
        self._received = {}
        if not self._move or not keeps_any:
            return
        self._somebody_keeps = True
        outgoing: list[dict[int, ClientState]] = [{} for _ in range(self._ranks.size)]
        for client, state in self._made.items():
            outgoing[self._owner(client)][client] = state
        for client, state in self._exchange(outgoing).items():
            self._states.write(client, round, state)

    def _exchange(self, outgoing: Sequence[dict[int, ClientState]]) -> dict[int, ClientState]:
        """Send the states of some clients to each process; returns the states sent here, by client."""
        parts = self._ranks.exchange([pack(states) if states else {} for states in outgoing])
        return {client: state for part in parts if part for client, state in unpack(dict[int, ClientState], part).items()}

    def _owner(self, client: int) -> int:
        return client % self._ranks.size
