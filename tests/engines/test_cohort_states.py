"""How states reach the engine and where they go from it; that two processes exchange them is in ``test_without_a_trainer``."""

import pytest
import torch

from fl_lightning.engines.cohort_states import CohortStates
from fl_lightning.engines.ranks import OneProcess
from fl_lightning.protocol import ClientState
from fl_lightning.state.client_states import DiskStates, MemoryStates


class Mail(OneProcess):
    """The first of two processes; whatever is sent to the second is kept, and nothing comes from it."""

    rank, size = 0, 2

    def __init__(self, of_other=0):
        self.sent, self.of_other = [], of_other

    def sum(self, tensor):
        return tensor + self.of_other

    def exchange(self, outgoing):
        self.sent.append(sorted({int(path.split("/")[0]) for path in outgoing[1]}))
        return [outgoing[0], {}]


def state(value: float) -> ClientState:
    return ClientState(method={"seen": torch.tensor(value)})


def kept_in(states, client: int) -> dict[str, float]:
    return {name: float(tensor) for name, tensor in states.read(client).method.items()}


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_states_that_all_processes_read_do_not_move(kind, tmp_path):
    """Those of one process and those on disk are written where they lie."""
    states, ranks = (MemoryStates(), OneProcess()) if kind == "memory" else (DiskStates(tmp_path), Mail())
    cohort = CohortStates(states, ranks, torch.device("cpu"))
    cohort.fetch([[0, 1]] if kind == "memory" else [[0], [1]])
    assert not cohort.read(1)
    cohort.write(1, 1, state(3.0))
    cohort.send(1, keeps_any=True)
    states.commit(1, [1])
    assert kept_in(cohort, 1) == {"seen": 3.0}
    assert kind == "memory" or ranks.sent == []


def test_states_in_memory_lie_with_their_owners():
    """Of two processes the first owns client 2, which the second fits, and fits client 1, which the second owns."""
    states, ranks = MemoryStates(), Mail()
    states.write(2, 1, state(5.0))
    states.commit(1, [2])
    cohort = CohortStates(states, ranks, torch.device("cpu"))
    cohort.fetch([[0, 1], [2, 3]])
    assert not cohort.read(1)
    cohort.write(2, 0, state(6.0))
    cohort.write(2, 1, state(7.0))
    cohort.send(2, keeps_any=True)
    states.commit(2, [0, 1])
    assert ranks.sent == [[2], [1]]
    assert kept_in(states, 0) == {"seen": 6.0}
    assert not states.read(1)


def test_processes_that_keep_nothing_exchange_nothing():
    """Neither before the fits nor after them, until some process says that a client of its keeps something."""
    ranks = Mail()
    cohort = CohortStates(MemoryStates(), ranks, torch.device("cpu"))
    for round, exchanged in enumerate([0, 0, 1, 3], start=1):
        cohort.fetch([[0], [1]])
        cohort.send(round, keeps_any=round > 2)
        assert len(ranks.sent) == exchanged


def test_a_state_of_another_process_is_asked_for():
    """As after a resume, where the first process may own none of those that keep something."""
    ranks = Mail(of_other=1)
    cohort = CohortStates(MemoryStates(), ranks, torch.device("cpu"))
    for _ in range(2):
        cohort.fetch([[0], [1]])
    assert len(ranks.sent) == 2
