"""FedCM against its Algorithm 1 in a plain loop."""

from functools import partial

import pytest
import torch
from declared_by_tests import Cost
from torch.optim.lr_scheduler import LambdaLR, LinearLR

from fl_lightning import FedAvg
from fl_lightning.methods import FedCM, MoFedSAM

COSTS = {"FedCM": Cost(down=(1, 1, 0), server=(0, 1, 0))}


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "sgd tce", "adam"], indirect=True)
@pytest.mark.parametrize("weighting", ["n_weighted", "uniform"])
def test_rounds_equal_algorithm_1(tiny, weighting):
    """Three rounds of clients with 4, 6 and 2 steps, at a rate that falls; with momentum their gradients count more often."""
    method = tiny.train(FedCM, alpha=0.3, server_weighting=weighting)

    def gradient(local, received, client, inputs, targets):
        return tiny.gradient(local, client, inputs, targets)

    net = tiny.rounds_with_momentum(0.3, gradient, uniform=weighting == "uniform")
    tiny.assert_same(method.net, net, atol=1e-8)
    tiny.assert_moved(net)


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}], ids=str)
@pytest.mark.parametrize("schedule", [None, partial(LinearLR, start_factor=0.01, total_iters=4)], ids=["one rate", "warm-up"])
@pytest.mark.parametrize("method", [FedCM, MoFedSAM])
def test_the_direction_of_a_constant_gradient(tiny, method, schedule, settings):
    """``D <- alpha g + (1 - alpha) D`` from 0: ``(1 - (1 - alpha)^3) g`` after three rounds, with any momentum and schedule."""
    optimizer = {"optimizer": lambda weights: torch.optim.SGD(weights, lr=0.1, **settings)}
    trained = tiny.train(method, alpha=0.3, loss=tiny.first_output, visit_lr_scheduler=schedule, **optimizer)
    direction = trained.server_states.tensors("direction")["classifier.bias"]
    expected = torch.tensor([1 - 0.7**3, 0.0, 0.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(direction, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("engine", ["sequential", "vectorized", "captured"])
def test_a_rate_of_0_keeps_the_direction(tiny, engine):
    """After round 2, of two clients at a rate of 0, weights and D are those after round 1, bit for bit."""
    schedule = {"client_lr_scheduler": lambda one: LambdaLR(one, lambda past: float(past == 0))}
    settings = {"norm": False, "server_weighting": "uniform", "engine": engine, **schedule}
    first, second = (tiny.train(FedCM, rounds=rounds, **settings) for rounds in (1, 2))
    assert second.reports[1].nonfinite == []
    tiny.assert_same(second.net, first.net, atol=0)
    tiny.assert_same(*(trained.server_states.tensors("direction") for trained in (second, first)), atol=0)


def test_the_own_gradient_alone_is_fedavg(tiny):
    """alpha = 1: ``1 g + 0 D``, bit for bit."""
    tiny.assert_same(tiny.train(FedCM, alpha=1).net, tiny.train(FedAvg).net, atol=0)


@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_alpha_out_of_range_is_refused(tiny, alpha):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError, match=rf"^model.alpha is {alpha}, must be above 0 and at most 1: 1 is without momentum$"):
        FedCM(tiny.new_net(), alpha=alpha)
