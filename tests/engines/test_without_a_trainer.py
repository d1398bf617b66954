"""Rounds with no Lightning around them, as a site of a real federation runs them."""

import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from fl_lightning import FedAvg
from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.engines.cohort_states import CohortStates
from fl_lightning.engines.engine_choice import by_rule
from fl_lightning.engines.rounds import run_round
from fl_lightning.engines.run_context import RunContext
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.engines.vectorized import VectorizedEngine
from fl_lightning.protocol import Client, ClientState, LearnedTask, Needs, Protection, SparseTensor, Visit, pack
from fl_lightning.state.client_states import ClientStates, DiskStates, MemoryStates


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()


def run_rounds(method: FederatedAlgorithm, engine_kind, data, rounds: int, **settings) -> RunContext:
    """What a user's loop has to do for a round; settings of the context."""
    data.setup()
    data.to(torch.device("cpu"), torch.float64)
    method.join(data)
    context = RunContext(**settings)
    engine = engine_kind(method, context)
    for round in range(1, rounds + 1):
        run_round(method, engine, round)
    return context


@pytest.mark.parametrize("engine", [SequentialEngine, VectorizedEngine])
def test_the_weights_are_those_of_a_fit(engine, toy_data, fit):
    """FedAvg by hand and by the trainer, every bit."""
    by_hand, fitted = FederatedAlgorithm(net(), local_steps=2), FedAvg(net(), local_steps=2, engine=engine_name(engine))
    run_rounds(by_hand, engine, toy_data(clients_per_round=2), 3)
    fit(fitted, toy_data(clients_per_round=2), 3)
    for name, weight in fitted.net.state_dict().items():
        assert torch.equal(by_hand.net.state_dict()[name], weight), name


def engine_name(engine) -> str:
    return engine.__name__.removesuffix("Engine").lower()


class CountsInGroups(torch.optim.SGD):
    """As LAMB and Adan of timm do."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for weight in group["params"]:
                weight.data -= group["lr"] / group["step"] * weight.grad


def test_a_visit_begins_with_a_fresh_optimizer(toy_data):
    """Client 2 ends the same after others and as the first, though the optimizer keeps a count out of its state."""
    data = toy_data()
    method = FederatedAlgorithm(net(), optimizer=lambda weights: CountsInGroups(weights, lr=0.1), local_steps=2)
    data.setup()
    data.to(torch.device("cpu"), torch.float64)
    method.join(data)
    engine = SequentialEngine(method, RunContext())
    first, last = (engine.fit_and_forget(1, [Visit(client) for client in clients])[0] for clients in ([2], [0, 1, 2]))
    assert all(torch.equal(last[2][name], weight) for name, weight in first[0].items())


class Counting(FederatedAlgorithm):
    """Keeps with each client how often it came."""

    needs = Needs(client_weights=True)

    def client_result(self, net, client: Client):
        client.state["visits"] = client.state.get("visits", torch.zeros(())) + 1
        return super().client_result(net, client)


def test_clients_keep_their_state_between_rounds(toy_data):
    """A user's method, its state and the weights that it keeps."""
    context = run_rounds(Counting(net(), local_steps=1), SequentialEngine, toy_data(), 2)
    assert isinstance(context.states, MemoryStates)
    for client in range(3):
        state = context.states.read(client)
        assert isinstance(state, ClientState)
        assert state.method["visits"] == 2
        assert state.weights.keys() == {name for name, _ in net().named_parameters()}


class Table:
    """Where the ranks of one process lay down what they have for each other."""

    def __init__(self, size: int) -> None:
        self.parts: list = [None] * size
        self._barrier = threading.Barrier(size, timeout=240)  # the first of them may import for long on a busy machine

    def show(self, rank: int, part) -> list:
        """What all laid down."""
        self.parts[rank] = part
        self._barrier.wait()
        shown = list(self.parts)
        self._barrier.wait()
        return shown


class ThreadRanks:
    """A site's answer to what moves between processes: here threads, and no torch.distributed."""

    def __init__(self, table: Table, rank: int) -> None:
        self.table, self.rank, self.size = table, rank, len(table.parts)
        self.calls: list[str] = []

    def sum(self, tensor):
        self.calls.append("sum")
        return torch.stack(self.table.show(self.rank, tensor)).sum(dim=0)

    def gather(self, part):
        self.calls.append("gather")
        return self.table.show(self.rank, part)

    def exchange(self, outgoing):
        self.calls.append("exchange")
        return [parts[self.rank] for parts in self.table.show(self.rank, outgoing)]

    def broadcast(self, value):
        self.calls.append("broadcast")
        return self.table.show(self.rank, value)[0]


@pytest.mark.parametrize("engine", [SequentialEngine, VectorizedEngine])
def test_two_ranks_share_a_round(engine, toy_data):
    """By the context's collectives alone: both end with the weights of one process, each has its clients' states."""
    alone = Counting(net(), local_steps=2)
    run_rounds(alone, engine, toy_data(), 3)
    table, methods = Table(2), [Counting(net(), local_steps=2) for _ in range(2)]
    ranks = [ThreadRanks(table, rank) for rank in range(2)]

    def site(rank: int) -> RunContext:
        return run_rounds(methods[rank], engine, toy_data(), 3, ranks=ranks[rank])

    with ThreadPoolExecutor(2) as pool:
        contexts = list(pool.map(site, range(2)))
    for name, weight in alone.net.state_dict().items():
        first, second = (method.net.state_dict()[name] for method in methods)
        assert torch.equal(first, second), name
        torch.testing.assert_close(first, weight, rtol=1e-12, atol=1e-14)
    assert [sorted(context.states.clients()) for context in contexts] == [[0, 2], [1]]
    assert all(contexts[client % 2].states.read(client).method["visits"] == 3 for client in range(3))
    assert {"sum", "gather", "exchange"} == set(ranks[0].calls)


class LearnsTasks(FederatedAlgorithm):
    """Notes a task at each visit, and leaves all other hooks at their defaults."""

    def client_start(self, net, client: Client):
        client.tasks[client.round] = LearnedTask({"of": torch.tensor(float(client.index))})
        return {}


@pytest.mark.parametrize("engine", [SequentialEngine, VectorizedEngine])
def test_tasks_stay_with_clients_under_every_engine(engine, toy_data):
    states = run_rounds(LearnsTasks(net(), local_steps=1), engine, toy_data(), 2).states
    for client in range(3):
        tasks = states.read(client).tasks
        assert [(position, float(task.tensors["of"])) for position, task in tasks.items()] == [(1, client), (2, client)]


def whole_state() -> ClientState:
    """All four parts, tensors in groups and sparse ones among them."""
    weights = dict(net().named_parameters())
    sparse = SparseTensor.of(torch.tensor([[0.0, 2.0], [0.0, -1.0]]))
    return ClientState(
        method={"visits": torch.tensor(3), "variate": {"0.bias": torch.arange(6.0)}},
        weights={name: weight.detach() * 2 for name, weight in weights.items()},
        moments={0: {"momentum_buffer": torch.full((6, 4), 0.5, dtype=torch.float64), "step": torch.tensor(7.0)}},
        tasks={1: LearnedTask({"2.bias": torch.ones(3)}, {"0": sparse}, torch.tensor([[2, 0]])), 4: LearnedTask()},
    )


def keep(states: ClientStates) -> ClientStates:
    """Client 0's whole state, kept in round 1."""
    states.write(0, 1, whole_state())
    states.commit(1, [0])
    return states


def through_a_checkpoint(states: ClientStates, file: Path) -> ClientState:
    torch.save(keep(states).checkpoint(), file)
    restored = MemoryStates()
    restored.restore(torch.load(file, weights_only=True))
    return restored.read(0)


def through_ranks() -> ClientState:
    """Client 0 of the first process is fitted by the second."""
    table, stores = Table(2), [keep(MemoryStates()), MemoryStates()]

    def visit(rank: int) -> None:
        cohort = CohortStates(stores[rank], ThreadRanks(table, rank), torch.device("cpu"))
        cohort.fetch([[1], [0]])
        if rank == 1:
            cohort.write(2, 0, cohort.read(0))
        cohort.send(2, keeps_any=True)
        stores[rank].commit(2, [0])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(visit, range(2)))
    return stores[0].read(0)


class GoesOn(FederatedAlgorithm):
    """Client 0 alone, from the weights that it kept."""

    needs = Needs(client_weights=True)

    def cohort(self, round: int) -> list[Visit]:
        return [Visit(0, receives=False)]

    def client_learning_rate(self, round: int, client: int) -> float:
        return 0.0


def through_a_visit(engine, data) -> ClientState:
    """A visit that changes nothing."""
    return run_rounds(GoesOn(net(), local_steps=1), engine, data, 1, states=keep(MemoryStates())).states.read(0)


@pytest.mark.parametrize(
    "road", ["memory", "disk", "checkpoint of memory", "checkpoint of disk", "ranks", "sequential", "vectorized"]
)
def test_a_whole_state_comes_back_equal(road, toy_data, tmp_path):
    """Every tensor of every part, whatever a state moves through."""
    roads = {
        "memory": lambda: keep(MemoryStates()).read(0),
        "disk": lambda: keep(DiskStates(tmp_path)).read(0),
        "checkpoint of memory": lambda: through_a_checkpoint(MemoryStates(), tmp_path / "a.ckpt"),
        "checkpoint of disk": lambda: through_a_checkpoint(DiskStates(tmp_path), tmp_path / "a.ckpt"),
        "ranks": through_ranks,
        "sequential": lambda: through_a_visit(SequentialEngine, toy_data()),
        "vectorized": lambda: through_a_visit(VectorizedEngine, toy_data()),
    }
    torch.testing.assert_close(pack(roads[road]()), pack(whole_state()), rtol=0, atol=0)


class SeesTypes(FederatedAlgorithm):
    """Notes in which hook its net gives outputs of which type."""

    def __init__(self, *arguments, **settings) -> None:
        super().__init__(*arguments, **settings)
        self.seen: list[tuple[str, torch.dtype]] = []

    def note(self, hook: str, net: nn.Module) -> None:
        self.seen.append((hook, net(torch.zeros(1, 4)).dtype))

    def client_start(self, net, client: Client):
        self.note("start", net)
        return super().client_start(net, client)

    def client_loss(self, net, batch, client: Client):
        self.note("loss", net)
        return super().client_loss(net, batch, client)

    def client_result(self, net, client: Client):
        self.note("result", net)
        return super().client_result(net, client)

    def after_server_step(self, probes) -> None:
        self.note("server", self.net)
        super().after_server_step(probes)


HALF = partial(torch.autocast, "cpu", torch.bfloat16)
IN_HALF = [(hook, torch.bfloat16) for hook in ("start", "loss", "result")]


@pytest.mark.parametrize("engine", [SequentialEngine, VectorizedEngine])
def test_a_round_runs_in_the_precision_of_its_context(engine, toy_data):
    """All hooks of clients; the weights stay in theirs."""
    method, data = SeesTypes(net().float(), local_steps=1), toy_data()
    data.setup()
    method.join(data)
    run_round(method, engine(method, RunContext(precision=HALF)), 1)
    assert set(method.seen) == {*IN_HALF, ("server", torch.bfloat16)}
    assert all(weight.dtype == torch.float32 for weight in method.net.parameters())


def test_a_site_fits_and_sends_in_the_precision_of_its_context(toy_data):
    """One visit by hand, and what it sends."""
    method, data = SeesTypes(net().float(), local_steps=1), toy_data()
    data.setup()
    method.join(data)
    engine = SequentialEngine(method, RunContext(precision=HALF))
    engine.visit(engine.request(1, Visit(2)))
    assert method.seen == IN_HALF


def test_a_protection_says_by_itself_why_clients_run_one_by_one(toy_data):
    """Where a net as small as this would be stacked; DP-SGD is one reason of many."""
    method, data = FederatedAlgorithm(net(), local_steps=1), toy_data()
    data.setup()
    method.join(data)
    assert by_rule(method, RunContext(), [1]).name == "vectorized"
    protection = Protection(one_by_one="the enclave holds one client")
    assert by_rule(method, RunContext(protection=protection), [1]) == ("sequential", "the enclave holds one client")


def test_a_method_without_data_says_so():
    with pytest.raises(ValueError, match=r"has no data yet: call join"):
        FederatedAlgorithm(net()).cohort(1)


@pytest.mark.slow
def test_the_algorithm_knows_no_lightning():
    """Neither it nor an engine imports a trainer: a site needs torch alone."""

    code = "import sys, fl_lightning.algorithm, fl_lightning.engines.engine_choice; sys.exit('lightning' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_documented_loop_learns(capsys):
    """docs/engines.md, as it stands there: the mean loss of a round falls."""
    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
    (code,) = re.findall(r"## Without a trainer.*?```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})
    losses = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 10
    assert losses[-1] < losses[0]
