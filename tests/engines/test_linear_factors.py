"""Local steps of large linear layers by the factors of their gradients, against steps with the gradients themselves."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fl_lightning import SCAFFOLD, FedAvg, FedNTD, FedProx
from fl_lightning.data import from_arrays
from fl_lightning.engines import linear_factors
from fl_lightning.engines.captured import CapturedEngine
from fl_lightning.engines.rounds import run_round
from fl_lightning.engines.run_context import RunContext
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.privacy import DPSGD
from fl_lightning.protocol import Learner

FEATURES, CLASSES, SIZE = 6, 3, 8
NEVER = 1 << 60


class Twice(nn.Module):
    """Uses a layer twice, and its weight a third time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES, bias=False)

    def forward(self, inputs):
        hidden = self.layer(torch.tanh(self.layer(inputs)))
        return self.last(torch.tanh(hidden) @ self.layer.weight)


class InParts(nn.Module):
    """Its first layer sees two vectors a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES // 2, 4), nn.Linear(8, CLASSES)

    def forward(self, inputs):
        return self.last(torch.tanh(self.first(inputs.unflatten(1, (2, -1)))).flatten(1))


class InPhases(FedAvg):
    """Every second step leaves the first layer as it is."""

    def resting(self, client, step):
        return ("0.weight",) if step % 2 else ()


def mlp(hidden: int = 5) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, hidden), nn.Tanh(), nn.Linear(hidden, CLASSES))


def federation():
    draw = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(3 * SIZE, FEATURES, generator=draw), torch.randint(CLASSES, (3 * SIZE,), generator=draw)
    clients = [range(client * SIZE, (client + 1) * SIZE) for client in range(3)]
    data = from_arrays(inputs, targets, clients, clients_per_round=3, batch_size=3)
    data.setup()
    data.to(torch.device("cpu"), torch.float32)
    return data


def engine_of(kind, net, monkeypatch, least, engine=SequentialEngine, context=None, **settings) -> SequentialEngine:
    monkeypatch.setattr(linear_factors, "_LEAST", least)
    settings = {"optimizer": lambda weights: torch.optim.SGD(weights, lr=0.5), "local_steps": 4} | settings
    method = kind(copy.deepcopy(net), **settings)
    method.join(federation())
    return engine(method, context or RunContext())


def factored(engine: SequentialEngine) -> list[str]:
    return [*engine._factors._weights]


CASES = {
    "an MLP": (FedAvg, mlp, {}, ["0.weight", "2.weight"]),
    "blocks of rows": (FedAvg, partial(mlp, 2 * linear_factors._ROWS), {}, ["0.weight", "2.weight"]),
    "a penalty": (partial(FedProx, mu=1.0), mlp, {}, ["0.weight", "2.weight"]),
    "one layer several times": (FedAvg, Twice, {}, ["layer.weight", "last.weight"]),
    "inputs with more dimensions": (FedAvg, InParts, {}, ["first.weight", "last.weight"]),
    "phases": (InPhases, mlp, {}, ["0.weight", "2.weight"]),
    "rates of steps": (
        FedAvg,
        mlp,
        {"visit_lr_scheduler": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)},
        ["0.weight", "2.weight"],
    ),
    "a part is trained": (partial(FedAvg, trained=["2.*"]), mlp, {}, ["2.weight"]),
    "rates of layers": (
        FedAvg,
        mlp,
        {
            "optimizer": lambda weights: torch.optim.SGD(
                [{"params": [weight], "lr": 0.1 * number} for number, weight in enumerate(weights, 1)], lr=1.0
            )
        },
        ["0.weight", "2.weight"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_steps_end_where_those_with_gradients_end(case, monkeypatch):
    """Three rounds, to the rounding of float32."""
    kind, build, settings, names = CASES[case]
    torch.manual_seed(1)
    net = build()
    ours, plain = (engine_of(kind, net, monkeypatch, least, **settings) for least in (1, NEVER))
    assert (factored(ours), factored(plain)) == (names, [])
    for round in range(1, 4):
        reports = [run_round(engine.method, engine, round) for engine in (ours, plain)]
        assert reports[0].losses == pytest.approx(reports[1].losses, rel=1e-5)
    for name, weight in plain.method.net.state_dict().items():
        torch.testing.assert_close(ours.method.net.state_dict()[name], weight, rtol=1e-5, atol=1e-6)
        moved = (weight - net.state_dict()[name]).abs().max()
        assert moved > 1e-2 or not weight.numel() or not dict(plain.net.named_parameters())[name].requires_grad, name


def test_a_step_is_that_of_the_formula(monkeypatch):
    """Softmax less one-hot, times the inputs, in float64."""
    engine = engine_of(FedAvg, nn.Linear(FEATURES, CLASSES), monkeypatch, 1, local_steps=1)
    weight, bias = (tensor.detach().double() for tensor in engine.method.net.parameters())
    (batch,) = engine.samples.batches(0, 1, 1)
    inputs = batch.inputs.double()
    error = (inputs @ weight.t() + bias).softmax(dim=1) - F.one_hot(batch.targets, CLASSES)
    engine.fit(engine.request(1, engine.method.cohort(1)[0]._replace(client=0)))
    torch.testing.assert_close(
        engine.trained["weight"].double(), weight - 0.5 * error.t() @ inputs / len(inputs), rtol=1e-6, atol=1e-7
    )
    torch.testing.assert_close(engine.trained["bias"].double(), bias - 0.5 * error.mean(dim=0), rtol=1e-6, atol=1e-7)


class Follows(Learner):
    """A learner that changes nothing, but could."""


class OwnLoss(FedAvg):
    def client_loss(self, net, batch, client):
        return super().client_loss(net, batch, client)


def test_hooks_outside_of_a_step_get_gradients(monkeypatch):
    """All of them, before the first step."""
    found = []

    class Looks(FedAvg):
        def client_start(self, net, client):
            batch = next(client.batches())
            found.append(self.client_gradients(net, batch, client)[0])
            return {}

    engine = engine_of(Looks, mlp(), monkeypatch, 1)
    run_round(engine.method, engine, 1)
    assert len(found) == 3
    assert all(isinstance(gradient, torch.Tensor) for gradients in found for gradient in gradients)


OTHERS = {
    "a loss that could look": (OwnLoss, {}),
    "gradients of the method's own": (SCAFFOLD, {}),
    "another objective": (FedNTD, {}),
    "a learner": (FedAvg, {"tasks": Follows()}),
    "clipping": (FedAvg, {"clip_local_gradients": 1.0}),
    "parts of a batch": (FedAvg, {"micro_batch_size": 1}),
    "momentum": (FedAvg, {"optimizer": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9)}),
    "weight decay": (FedAvg, {"optimizer": lambda weights: torch.optim.SGD(weights, lr=0.1, weight_decay=0.1)}),
    "upwards": (FedAvg, {"optimizer": lambda weights: torch.optim.SGD(weights, lr=0.1, maximize=True)}),
    "another optimizer": (FedAvg, {"optimizer": torch.optim.Adam}),
    "half precision": (FedAvg, {"context": RunContext(precision=lambda: torch.autocast("cpu", torch.bfloat16))}),
    "private gradients": (FedAvg, {"context": RunContext(protection=DPSGD(1.0, 1.0).protection(seed=0))}),
    "a compiled step": (FedAvg, {"engine": CapturedEngine}),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_steps_have_gradients(case, monkeypatch):
    """Where a gradient is read, or a step is more than its rate times it."""
    kind, settings = OTHERS[case]
    assert factored(engine_of(kind, mlp(), monkeypatch, 1, **settings)) == []
