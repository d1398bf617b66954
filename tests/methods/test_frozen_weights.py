"""A net with a frozen body against the rest of it alone, on samples that the body has seen: weights, bytes, states."""

import copy
import inspect
from dataclasses import replace
from itertools import cycle

import pytest
import torch
from declared_by_tests import changes
from torch import Tensor, nn

from fl_lightning import FedAvg, methods
from fl_lightning.callbacks import Communication
from fl_lightning.privacy import UserLevelDP

with torch.random.fork_rng():
    torch.manual_seed(2)  # some bodies make batches of nearly equal features, whose BatchNorm magnifies rounding
    BODY = nn.Sequential(nn.Linear(3, 50), nn.Tanh(), nn.Linear(50, 3)).double().requires_grad_(False)


class WithBody(nn.Module):
    """A net behind a body that is not trained."""

    def __init__(self, tail: nn.Module) -> None:
        super().__init__()
        self.body, self.tail = copy.deepcopy(BODY), tail

    @property
    def classifier(self) -> nn.Module:
        return self.tail.classifier

    def features(self, inputs: Tensor) -> Tensor:
        return self.tail.features(self.body(inputs))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.tail(self.body(inputs))


def both(tiny, name, **settings):
    """The method on the whole net, and on the trained part of it with samples that the body has been through."""

    def new_data(new_data=tiny.new_data, **settings):
        data = new_data(**settings)
        data.setup()
        data.train_set.inputs.copy_(BODY(data.train_set.inputs))
        return data

    # Patterns go by where the class layer is.
    defaults = {key: argument.default for key, argument in inspect.signature(getattr(methods, name)).parameters.items()}
    defaults["personal"] = settings.get("personal", getattr(methods, name).personal)
    settings |= {key: ["*classifier.*"] for key, patterns in defaults.items() if patterns == ("classifier.*",)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "new_net", lambda norm=True, new_net=tiny.new_net: WithBody(new_net(norm)))
        whole = tiny.train_any(name, **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "new_data", new_data)
        return whole, tiny.train_any(name, **settings)


def assert_alike(tiny, whole, part):
    added = {name: tensor for name, tensor in whole.net.state_dict().items() if not name.startswith(("body.", "tail."))}
    tiny.assert_same({**whole.net.tail.state_dict(), **added}, part.net)
    for name, weight in BODY.named_parameters():
        assert torch.equal(whole.net.get_parameter(f"body.{name}"), weight), name
    for one, other in zip(whole.reports, part.reports, strict=True):
        assert (one.bytes_down, one.bytes_up) == (other.bytes_down, other.bytes_up)
    clients = part.stored.states.clients()
    assert whole.stored.states.clients() == clients
    for client in clients:
        assert whole.stored.states.read(client).num_bytes() == part.stored.states.read(client).num_bytes()


@pytest.mark.parametrize(
    ("name", "engine"),
    list(zip((name for name in methods.__all__ if not changes(name, "pseudo_data")), cycle(["sequential", "vectorized"]))),
)
@pytest.mark.one_in(3)
def test_frozen_weights_are_constants(tiny, name, engine):
    """Not sent, not summed, not kept, not counted, and what is trained comes out the same.

    Pseudo data is made of what the body gets.
    """
    assert_alike(tiny, *both(tiny, name, engine=engine))


@pytest.mark.slow
def test_under_the_captured_engine(tiny):
    assert_alike(tiny, *both(tiny, "SCAFFOLD", engine="captured", cohorts=[[1], [1]]))


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_kept_weights_are_those_that_are_trained(tiny, monkeypatch, engine):
    """Where clients keep all their weights between visits, and where a pattern keeps frozen ones too."""
    assert_alike(tiny, *both(tiny, "FedAvg", engine=engine, personal=("*0.*", "*classifier*")))
    monkeypatch.setattr(methods.FedAvg, "needs", replace(methods.FedAvg.needs, client_weights=True))
    assert_alike(tiny, *both(tiny, "FedAvg", engine=engine))


def test_user_level_privacy_bounds_what_is_trained(tiny):
    """The norm that is clipped is that of the trained weights' change."""
    settings = {"privacy": UserLevelDP(0.5, clipping_norm=0.1), "server_weighting": "uniform", "norm": False}
    assert_alike(tiny, *both(tiny, "FedAvg", rounds=3, cohorts=None, **settings))


def test_bytes_are_those_of_what_is_trained(fit, toy_data):
    """4 x 1000 + 1000 frozen values, 3 x 1000 + 3 trained: 3003 float64 values are 24,024 bytes a client, up and down."""

    net = nn.Sequential(nn.Linear(4, 1000), nn.ReLU(), nn.Linear(1000, 3)).double()
    net[0].requires_grad_(False)
    counter = Communication()
    fit(FedAvg(net), toy_data(cohorts=[[0, 2], [1]]), 2, precision="64-true", callbacks=[counter])
    assert (counter.total_down, counter.total_up) == (3 * 24_024, 3 * 24_024)
