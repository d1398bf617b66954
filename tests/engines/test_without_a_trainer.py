"""Rounds with no Lightning around them, as a site of a real federation runs them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fl_lightning import FedAvg
from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.engines.rounds import run_round
from fl_lightning.engines.run_context import RunContext
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.engines.vectorized import VectorizedEngine
from fl_lightning.exchange import Client, ClientState, Needs
from fl_lightning.state.client_states import MemoryStates


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()


def run_rounds(method: FederatedAlgorithm, engine_kind, data, rounds: int) -> RunContext:
    """What a user's loop has to do for a round."""
    data.setup()
    data.to(torch.device("cpu"), torch.float64)
    method.join(data)
    context = RunContext()
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


def test_a_method_without_data_says_so():
    with pytest.raises(ValueError, match=r"has no data yet: call join"):
        FederatedAlgorithm(net()).cohort(1)


def test_the_algorithm_knows_no_lightning():
    """Neither it nor an engine imports a trainer: a site needs torch alone."""

    code = "import sys, fl_lightning.algorithm, fl_lightning.engines.selection; sys.exit('lightning' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_documented_loop_learns(capsys):
    """docs/engines.md, as it stands there: the mean loss of a round falls."""
    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
    (code,) = re.findall(r"## Without a trainer.*?```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})
    losses = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 10
    assert losses[-1] < losses[0]
