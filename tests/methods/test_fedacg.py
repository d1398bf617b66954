"""FedACG against its equations in a plain loop."""

import copy

import pytest
import torch
from declared_by_tests import Cost

from fl_lightning.methods import FedACG, FedProx

COSTS = {"FedACG": Cost(server=(0, 1, 0))}


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "sgd tce", "adam"], indirect=True)
def test_rounds_equal_the_equations(tiny):
    """``v = w + lambda m``; clients pull towards v; ``m <- lambda m + mean(w_k - v)``; ``w <- w + m``. Three rounds."""
    mu, momentum = 0.8, 0.6
    method, net = tiny.train(FedACG, momentum=momentum, mu=mu), tiny.new_net()
    m = {name: torch.zeros_like(weight) for name, weight in net.named_parameters()}

    def objective(local, received, client, inputs, targets):
        distance = sum(((w - v.detach()) ** 2).sum() for w, v in zip(local.parameters(), received.parameters()))
        return tiny.losses(local(inputs), targets, client).mean() + mu / 2 * distance

    for round, cohort in tiny.rounds:
        ahead = copy.deepcopy(net)
        with torch.no_grad():
            for name, weight in ahead.named_parameters():
                weight += momentum * m[name]
        mean = tiny.mean({client: tiny.visit(ahead, client, round, objective) for client in cohort})
        new = dict(mean)
        for name, v in ahead.named_parameters():
            m[name] = momentum * m[name] + (mean[name] - v.detach())
            new[name] = net.get_parameter(name).detach() + m[name]
        net.load_state_dict(new)
    tiny.assert_same(method.net, net)
    tiny.assert_moved(net)


def test_without_momentum_it_is_fedprox(tiny):
    """momentum = 0: bit for bit."""
    tiny.assert_same(tiny.train(FedACG, momentum=0, mu=0.8).net, tiny.train(FedProx, mu=0.8).net, atol=0)


def test_a_lost_round_does_not_move_the_model(tiny):
    """The net holds w after it, not the point ahead."""
    cohorts = [[0, 1], [3]]
    kept = tiny.train_any("FedACG", cohorts=cohorts, rounds=1)
    tiny.assert_same(tiny.train_any("FedACG", poisoned=3, cohorts=cohorts, rounds=2).net, kept.net, atol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"momentum": 1.0}, "model.momentum is 1.0, must be at least 0 and below 1: the paper uses 0.85"),
        ({"mu": -1.0}, "model.mu is -1.0, must be at least 0: 0 is without a pull"),
    ],
)
def test_settings_out_of_range_are_refused(tiny, settings, message):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError) as error:
        FedACG(tiny.new_net(), **settings)
    assert str(error.value) == message
