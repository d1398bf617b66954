"""A visit in another process, which has the method, a client's samples and the packed request: the same bits as in this one."""

import multiprocessing.connection

import pytest
import torch
from fork_server import fork
from torch import Tensor
from visits_elsewhere import METHODS, engine_of, samples, serve

from fl_lightning.engines.rounds import run_round
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.processes.process_group import from_bytes, to_bytes
from fl_lightning.protocol import Reply, Request, Visit, pack, unpack

ROUNDS = 4


class Wire(SequentialEngine):
    """Has visits made elsewhere."""

    connection: multiprocessing.connection.Connection

    def visit(self, request: Request) -> Reply:
        self.connection.send(type(self.method).__name__)
        self.connection.send_bytes(to_bytes(pack(request)).numpy().tobytes())
        return unpack(Reply, from_bytes(torch.frombuffer(bytearray(self.connection.recv_bytes()), dtype=torch.uint8)))


@pytest.fixture(scope="module")
def connection():
    ours, theirs = multiprocessing.Pipe()
    process = fork(serve, theirs, samples())  # of a server that has nothing of this process
    theirs.close()  # so that a process that fails ends the test
    yield ours
    ours.send("")
    process.join(60)
    assert process.exitcode == 0


def end_of(engine: SequentialEngine) -> dict[str, object]:
    """Of some rounds: the server's weights, buffers and state, clients' states, and the reports."""
    reports = [run_round(engine.method, engine, round) for round in range(1, ROUNDS + 1)]
    states = engine.context.states
    kept = {client: pack(states.read(client)) for client in sorted(states.clients())}
    return {"server": engine.method.state_dict(), "clients": kept, "reports": reports}


@pytest.mark.parametrize("name", METHODS)
def test_a_visit_in_another_process_gives_the_same_bits(connection, name):
    """Four rounds in which clients come again: what they keep goes there and back too."""
    wired = engine_of(name, samples(), Wire)
    wired.connection = connection
    here, there = end_of(engine_of(name, samples())), end_of(wired)
    assert there["reports"] == here["reports"]
    assert there["clients"].keys() == here["clients"].keys()
    assert bool(here["clients"]) == (name not in ("FedAvg", "FedReg"))
    for part in ("server", "clients"):
        torch.testing.assert_close(there[part], here[part], rtol=0, atol=0)


@pytest.mark.parametrize("name", METHODS)
def test_a_visit_is_a_function_of_its_request(name):
    """Made twice, after another client's, with the same reply; the request stays as it is."""
    engine = engine_of(name, samples())
    for round in (1, 2):
        run_round(engine.method, engine, round)
    request = engine.request(3, Visit(1))
    before = copied(request)
    first = copied(engine.visit(request))
    engine.visit(engine.request(3, Visit(2)))
    torch.testing.assert_close(copied(engine.visit(request)), first, rtol=0, atol=0)
    torch.testing.assert_close(copied(request), before, rtol=0, atol=0)


def copied(message: Request | Reply) -> dict[str, Tensor]:
    return {path: tensor.clone() for path, tensor in pack(message).items()}


def test_what_is_not_asked_for_does_not_come():
    """A client that trains for itself sends no update."""
    engine = engine_of("SCAFFOLD", samples())
    request = Request(1, 0, seed=5, broadcast=engine.method.broadcast(0), sends=False, max_steps=1)
    reply = engine.visit(request)
    assert (reply.upload, reply.bytes_up, reply.weight) == ({}, 0, 0)
    assert float(reply.loss) > 0
