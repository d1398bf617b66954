"""What becomes of BatchNorm's running statistics: averaged, local or reset."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fl_lightning import FedAvg
from fl_lightning.callbacks import FederatedCallback
from fl_lightning.data import from_arrays

MOMENTUM, RATE = 0.1, 0.05
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=MOMENTUM), nn.Linear(4, 2)).double()


def _data():
    inputs = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    clients = [range(0, 4), range(4, 12)]
    return inputs, torch.arange(12) % 2, clients


def _by_hand(kind: str, rounds: int) -> nn.Sequential:
    """Full-batch steps of both clients, one a round, written out; the server takes means weighted by 4 and 8 samples."""
    inputs, targets, clients = _data()
    server, kept = _net(), {}
    fresh = {name: buffer.clone() for name, buffer in server[1].named_buffers()}
    for _ in range(rounds):
        models = []
        for index, part in enumerate(clients):
            net = copy.deepcopy(server).train()
            start = {"averaged": None, "local": kept.get(index), "reset": fresh}[kind]
            for name, buffer in net[1].named_buffers():
                if start is not None:
                    buffer.copy_(start[name])
            loss = nn.functional.cross_entropy(net(inputs[list(part)]), targets[list(part)])
            for weight, gradient in zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters()))):
                weight.data.sub_(RATE * gradient)
            kept[index] = {name: buffer.clone() for name, buffer in net[1].named_buffers()}
            models.append(net.state_dict())
        mean = {name: (4 * models[0][name].double() + 8 * models[1][name].double()) / 12 for name in models[0]}
        for name, value in server.state_dict().items():
            if kind == "local" and name.split(".")[-1] in BUFFERS:
                continue
            value.copy_(mean[name].round() if name.endswith("tracked") else mean[name])
    return server


def _fit(kind: str, fit, rounds: int, engine: str = "sequential", **settings) -> FedAvg:
    inputs, targets, clients = _data()
    data = from_arrays(inputs, targets, clients, batch_size=None)
    sgd = partial(torch.optim.SGD, lr=RATE)
    method = FedAvg(_net(), optimizer=sgd, batch_norm_buffers=kind, engine=engine, local_steps=1)
    fit(method, data, rounds, precision="64-true", **settings)
    return method


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("kind", ["averaged", "local", "reset"])
def test_two_rounds_equal_a_plain_loop(kind, engine, fit):
    method, expected = _fit(kind, fit, 2, engine), _by_hand(kind, 2)
    for name, value in expected.state_dict().items():
        assert_close(method.net.state_dict()[name], value, rtol=0, atol=1e-12, msg=name)


def test_the_statistics_of_the_second_round_differ(fit):
    """After round 1 averaged and reset agree; in round 2 one goes on from the mean, the other anew. Local ones never arrive."""
    after = {kind: _fit(kind, fit, 2).net[1].running_mean for kind in ("averaged", "local", "reset")}
    assert after["local"].eq(0).all()
    assert not torch.allclose(after["averaged"], after["reset"])


class _Reports(FederatedCallback):
    def __init__(self) -> None:
        super().__init__()
        self.reports = []

    def on_round_end(self, trainer, module, round, report):
        self.reports.append(report)


@pytest.mark.parametrize(("kind", "down", "up"), [("averaged", 1, 1), ("local", 0, 0), ("reset", 0, 1)])
def test_what_is_not_sent_is_not_counted(kind, down, up, fit):
    """Two clients; the statistics are 4 + 4 values of float64 and a counter of 8 bytes: 72."""
    seen = _Reports()
    method = _fit(kind, fit, 1, callbacks=[seen])
    weights = 8 * sum(weight.numel() for weight in method.net.parameters())
    assert seen.reports[0].bytes_down == 2 * (weights + 72 * down)
    assert seen.reports[0].bytes_up == 2 * (weights + 72 * up)


def test_an_unknown_word_is_refused():
    with pytest.raises(ValueError, match="model.batch_norm_buffers is 'global', must be one of averaged, local, reset"):
        FedAvg(_net(), batch_norm_buffers="global")
