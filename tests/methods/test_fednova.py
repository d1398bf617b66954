"""FedNova against its equation 8 in a plain loop."""

from functools import partial

import pytest
import torch
from declared_by_tests import Cost
from torch.optim.lr_scheduler import LambdaLR

from fl_lightning import FedAvg
from fl_lightning.functional.schedules import RateFactors
from fl_lightning.methods import FedNova, FedProx
from fl_lightning.methods.fednova import AccumulatedSteps

COSTS = {"FedNova": Cost(up=(1, 0, 4))}


def counted(num_steps, momentum):
    """How often the gradients of so many steps count in the delta, summed: v <- momentum v + g, step by step."""
    total = velocity = 0.0
    for _ in range(num_steps):
        velocity = momentum * velocity + 1
        total += velocity
    return total


def moved(net, locals, p, a):
    """Equation 8: ``x - (sum_i p_i a_i) sum_i p_i (x - w_i) / a_i`` for every weight x."""
    effective = sum(p[client] * a[client] for client in locals)

    def mean(name, x):
        return sum(p[client] * (x - locals[client].get_parameter(name)) / a[client] for client in locals)

    return {name: (x - effective * mean(name, x)).detach() for name, x in net.named_parameters()}


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
        net.load_state_dict(tiny.mean(locals, uniform=weighting == "uniform") | moved(net, locals, p, a))
    tiny.assert_same(method.net, net)
    tiny.assert_moved(net)


def pulled(num_steps, rate, mu):
    """The same for ``w <- w - rate (g + mu (w - x))`` with gradients of 1: how far w comes, in units of the rate."""
    delta = 0.0
    for _ in range(num_steps):
        delta += 1 - mu * rate * delta
    return delta


@pytest.mark.parametrize("tiny", ["sgd", "sgd tce"], indirect=True)
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_proximal_rounds_equal_equation_8(tiny, engine):
    """Local objective ``F + mu/2 ||w - x||^2``, a_i of the proximal solver at the rate of the round, which decays."""
    mu = 1.3
    method, net = tiny.train(FedNova, mu=mu, engine=engine), tiny.new_net()

    def objective(local, received, client, inputs, targets):
        pairs = zip(local.parameters(), received.parameters())
        return tiny.losses(local(inputs), targets, client).mean() + mu / 2 * sum(((w - x) ** 2).sum() for w, x in pairs)

    for round, cohort in tiny.rounds:
        locals = {client: tiny.visit(net, client, round, objective) for client in cohort}
        p = {client: tiny.shard_sizes[client] / sum(tiny.shard_sizes[other] for other in cohort) for client in cohort}
        a = {client: pulled(tiny.num_steps(client), tiny.rate(round), mu) for client in cohort}
        net.load_state_dict(tiny.mean(locals) | moved(net, locals, p, a))
    tiny.assert_same(method.net, net)
    tiny.assert_moved(net)


def test_without_a_pull_nothing_changes(tiny):
    """mu = 0: bit for bit FedNova's equation; equal steps with a pull are FedProx."""
    tiny.assert_same(tiny.train(FedNova, mu=0.0).net, tiny.train(FedNova).net, atol=0)
    settings = {"local_steps": 3, "mu": 0.7}
    tiny.assert_same(tiny.train(FedNova, **settings).net, tiny.train(FedProx, **settings).net, atol=1e-12)


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
    assert method.accumulation(3, rate=0.1) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    "build",
    [
        partial(torch.optim.SGD, lr=0.5),
        partial(torch.optim.SGD, lr=0.5, dampening=0.3),
        partial(torch.optim.SGD, lr=0.5, momentum=0.9),
        partial(torch.optim.SGD, lr=0.5, momentum=0.9, nesterov=True),
        partial(torch.optim.SGD, lr=0.5, momentum=0.9, dampening=0.3),
    ],
    ids=lambda build: str(build.keywords),
)
@pytest.mark.parametrize("factors", [None, [0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]])
@pytest.mark.parametrize("steps", [1, 3, 7])
def test_accumulated_steps_equal_those_of_torch(build, factors, steps):
    """How far torch's SGD comes along gradients of 1, in units of its mean rate; plain SGD exactly as many steps."""
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer, rates = build([weight]), [0.5 * factor for factor in (factors or [1.0] * 7)[:steps]]
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    of_visit = factors and RateFactors("model.visit_lr_scheduler", lambda one: LambdaLR(one, lambda past: factors[past]))
    actual = AccumulatedSteps(build, of_visit)(steps)
    assert actual * sum(rates) / steps == pytest.approx(-weight.item(), abs=1e-12)
    if not optimizer.defaults["momentum"]:
        assert actual == steps


@pytest.mark.parametrize("build", [torch.optim.Adam, partial(torch.optim.SGD, momentum=1.0)])
def test_other_steps_count_once(build):
    """Their changes are no sums of gradients, or grow with the square of the steps."""
    assert AccumulatedSteps(build)(5) == 5


@pytest.mark.parametrize(("product", "expected"), [(0.5, 1.75), (1.0, 1.0), (1e-9, 3 - 3e-9)])
def test_proximal_accumulation_by_hand(tiny, product, expected):
    """Three steps: 1 + (1 - eta mu) + (1 - eta mu)^2, as the pull takes back the share eta mu of it; 3 at a rate of 0."""
    method = FedNova(tiny.new_net(), mu=product / 0.1, optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1))
    assert method.accumulation(3, rate=0.1) == pytest.approx(expected, abs=1e-14)
    assert method.accumulation(3, rate=0.0) == 3
    if product == 0.5:  # a schedule can take the rate to where the pull goes beyond: 1 - 0.6 + 0.36
        assert method.accumulation(3, rate=0.32) == pytest.approx(0.76)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda w: torch.optim.Adam(w), "model.optimizer is Adam, but FedNova supports only SGD: use SGD"),
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


@pytest.mark.parametrize(
    ("mu", "settings", "message"),
    [
        (-1.0, {"lr": 0.1}, "model.mu is -1.0, must be at least 0: 0 is without a pull"),
        (
            0.1,
            {"lr": 0.1, "momentum": 0.9},
            "model.mu is 0.1 and model.optimizer.momentum 0.9, but FedNova supports only one of them: set the other to 0",
        ),
        (
            11.0,
            {"lr": 0.1},
            "model.mu is 11.0, which with model.optimizer.lr 0.1 pulls beyond the received weights: the product must be at "
            "most 1",
        ),
    ],
)
def test_pulls_out_of_range_are_refused(tiny, mu, settings, message):
    """One line with the keys and the values."""
    with pytest.raises(ValueError) as error:
        FedNova(tiny.new_net(), mu=mu, optimizer=lambda weights: torch.optim.SGD(weights, **settings))
    assert str(error.value) == message
