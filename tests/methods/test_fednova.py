"""FedNova against its equation 8 in a plain loop."""

import pytest
import torch

from fl_lightning import FedAvg
from fl_lightning.methods import FedNova


def counted(num_steps, momentum):
    """How often the gradients of so many steps count in the way, summed: v <- momentum v + g, step by step."""
    total = velocity = 0.0
    for _ in range(num_steps):
        velocity = momentum * velocity + 1
        total += velocity
    return total


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "sgd tce"], indirect=True)
@pytest.mark.parametrize("weighting", ["n_weighted", "uniform"])
def test_rounds_equal_equation_8(tiny, weighting):
    """``x <- x - (sum p_i a_i) (sum p_i (x - y_i) / a_i)``, a_i from counting how often each gradient counts.

    The factors eta of the paper cancel. BatchNorm's statistics are averaged as in FedAvg, not normalised.
    """
    momentum = tiny.optimizer(tiny.new_net().parameters()).defaults["momentum"]
    method, net = tiny.train(FedNova, server_weighting=weighting), tiny.new_net()
    for round, cohort in tiny.rounds:
        locals = {client: tiny.visit(net, client, round) for client in cohort}
        size = {client: tiny.shard_sizes[client] if weighting == "n_weighted" else 1 for client in cohort}
        p = {client: size[client] / sum(size.values()) for client in cohort}
        a = {client: counted(tiny.num_steps(client), momentum) for client in cohort}
        effective = sum(p[client] * a[client] for client in cohort)
        new = tiny.mean(locals, uniform=weighting == "uniform")
        for name, x in net.named_parameters():
            d = sum(p[client] * (x - locals[client].get_parameter(name)) / a[client] for client in cohort)
            new[name] = (x - effective * d).detach()
        net.load_state_dict(new)
    tiny.assert_same(method.net, net)
    tiny.assert_moved(net)


@pytest.mark.parametrize("tiny", ["sgd", "momentum"], indirect=True)
def test_equal_steps_are_fedavg(tiny):
    """Three local steps everywhere: all a_i are one number, which cancels."""
    tiny.assert_same(tiny.train(FedNova, local_steps=3).net, tiny.train(FedAvg, local_steps=3).net, atol=1e-12)


def test_unequal_steps_are_not_fedavg(tiny):
    """2, 4 and 6 steps: another result."""
    actual, average = tiny.train(FedNova).net, tiny.train(FedAvg).net
    assert (actual.classifier.weight - average.classifier.weight).abs().max() > 1e-3


@pytest.mark.parametrize(("momentum", "expected"), [(0.0, 3.0), (0.5, 4.25)])
def test_accumulation_by_hand(tiny, momentum, expected):
    """Three steps with momentum 1/2: the gradients count 1 + 1/2 + 1/4, 1 + 1/2 and 1 times."""
    method = FedNova(tiny.new_net(), optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=momentum))
    assert method.accumulation(3) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda w: torch.optim.Adam(w), "model.optimizer is Adam, but FedNova knows how SGD adds up gradients: use SGD"),
        (lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9, nesterov=True), "model.optimizer.nesterov is True"),
        (lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9, dampening=0.5), "model.optimizer.dampening is 0.5"),
        (lambda w: torch.optim.SGD(w, lr=0.1, momentum=1.0), "model.optimizer.momentum is 1.0, must be at least 0 and below 1"),
    ],
)
def test_other_optimizers_are_refused(tiny, optimizer, message):
    """How they add up gradients is another formula, or divides by zero: one line with the key and the value."""
    with pytest.raises(ValueError) as error:
        FedNova(tiny.new_net(), optimizer=optimizer)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
