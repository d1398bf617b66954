"""pFedMe against its equations in a plain loop."""

import copy
from functools import partial

import pytest
import torch
from declared_by_tests import STATISTICS, Cost

from fl_lightning import FedAvg, PFedMe
from fl_lightning.privacy import DPSGD
from fl_lightning.tasks import L2SP

COSTS = {"PFedMe": Cost(client=(1, 0, -STATISTICS))}

PENALTY, RHO = 3.0, 0.1


def visit(tiny, net, client, round, penalty, inner_steps, rho, mu, warm_start=True, pull=0.0):
    """A client's w, whose buffers have seen theta's batches, and theta, after a visit."""
    w, theta, start = copy.deepcopy(net).train(), copy.deepcopy(net).train(), tiny.new_net()
    optimizer = tiny.optimizer(w.parameters())
    optimizer.param_groups[0]["lr"] = tiny.rate(round)
    for inputs, targets in tiny.batches(client, round):
        if not warm_start:
            theta.load_state_dict({**theta.state_dict(), **dict(w.named_parameters())})
        for _ in range(inner_steps):
            gradients = torch.autograd.grad(tiny.losses(theta(inputs), targets, client).mean(), list(theta.parameters()))
            with torch.no_grad():
                for t, g, anchor, first in zip(theta.parameters(), gradients, w.parameters(), start.parameters()):
                    t -= rho * (g + mu * t + pull * (t - first) + penalty * (t - anchor))
        for weight, t in zip(w.parameters(), theta.parameters()):
            weight.grad = penalty * (weight - t).detach()
        optimizer.step()
    w.load_state_dict({**w.state_dict(), **dict(theta.named_buffers())})
    return w, theta


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "adam tce"], indirect=True)
@pytest.mark.parametrize(("server_rate", "mu", "warm_start"), [(1.0, 0.0, True), (1.5, 0.3, True), (1.0, 0.0, False)])
def test_rounds_follow_algorithm_1(tiny, server_rate, mu, warm_start):
    """Three rounds with two inner steps; ``w <- (1 - beta) w + beta mean`` at the server, of weights alone."""
    server = partial(torch.optim.SGD, lr=server_rate)
    inner = {"inner_steps": 2, "inner_rate": RHO, "decay": mu, "warm_start": warm_start}
    method = tiny.train(PFedMe, penalty=PENALTY, server_optimizer=server, **inner)
    net, personal = tiny.new_net(), {}
    for round, cohort in tiny.rounds:
        locals = {}
        for client in cohort:
            locals[client], personal[client] = visit(tiny, net, client, round, PENALTY, 2, RHO, mu, warm_start)
        mean, old = tiny.mean(locals), copy.deepcopy(dict(net.named_parameters()))
        mean |= {name: (1 - server_rate) * weight.detach() + server_rate * mean[name] for name, weight in old.items()}
        net.load_state_dict(mean)
    tiny.assert_same(method.net, net)
    tiny.assert_states(method, {k: {"model": dict(theta.named_parameters())} for k, theta in personal.items()})
    used = copy.deepcopy(personal[1])
    used.load_state_dict({**used.state_dict(), **dict(net.named_buffers())})
    tiny.assert_personal(method, 1, used)


@pytest.mark.parametrize(
    ("settings", "is_personal"),
    [
        ({"batch_norm_buffers": "local"}, lambda name: name.startswith("features.1") and not name.endswith(("weight", "bias"))),
        ({"personal": ("classifier.*",)}, lambda name: name.startswith("classifier")),
    ],
)
def test_a_client_uses_theta_with_the_parts_that_it_keeps(tiny, settings, is_personal):
    """Its own running statistics where they are not shared, and its own head, which theta has seen."""
    thetas = {}

    def one(start, client, round):
        w, thetas[client] = visit(tiny, start, client, round, PENALTY, 2, RHO, 0.0)
        return w

    net, kept = tiny.rounds_with_personal_parts(is_personal, one)
    method = tiny.train(PFedMe, penalty=PENALTY, inner_steps=2, inner_rate=RHO, **settings)
    tiny.assert_same(method.net, net)
    for client, theta in thetas.items():
        used = tiny.new_net()
        used.load_state_dict({**net.state_dict(), **kept[client], **dict(theta.named_parameters())})
        tiny.assert_personal(method, client, used)


def test_theta_is_pulled_by_the_learner_of_tasks(tiny):
    """The server minimises the Moreau envelope of the objective with L2SP's pull."""
    method, net = tiny.train(PFedMe, penalty=PENALTY, inner_steps=2, inner_rate=RHO, tasks=L2SP(0.9)), tiny.new_net()
    for round, cohort in tiny.rounds:
        visits = {client: visit(tiny, net, client, round, PENALTY, 2, RHO, 0.0, pull=0.9) for client in cohort}
        net.load_state_dict(tiny.mean({client: w for client, (w, _) in visits.items()}))
    tiny.assert_same(method.net, net)


def test_one_step_of_rate_1_over_lambda_on_one_batch_is_fedavg(tiny):
    """theta = w - g / lambda, so that w moves by eta g, for every lambda."""
    for penalty in (0.5, 20.0):
        method = tiny.train(PFedMe, penalty=penalty, inner_steps=1, inner_rate=1 / penalty, local_steps=1)
        tiny.assert_same(method.net, tiny.train(FedAvg, local_steps=1).net)


def test_from_a_cold_start_steps_of_rate_1_over_lambda_are_fedavg(tiny):
    """On every batch of a visit theta = w - g / lambda, for every lambda; a warm start goes on elsewhere."""
    expected = tiny.train(FedAvg).net
    for penalty in (0.5, 20.0):
        settings = {"penalty": penalty, "inner_steps": 1, "inner_rate": 1 / penalty}
        tiny.assert_same(tiny.train(PFedMe, warm_start=False, **settings).net, expected)
        with pytest.raises(AssertionError):
            tiny.assert_same(tiny.train(PFedMe, **settings).net, expected)


@pytest.mark.parametrize("engine", ["vectorized", "captured"])
@pytest.mark.slow
def test_every_engine_starts_cold(tiny, engine):
    settings = {"penalty": PENALTY, "inner_steps": 2, "inner_rate": RHO, "warm_start": False}
    expected, method = (tiny.train(PFedMe, engine=each, **settings) for each in ("sequential", engine))
    tiny.assert_same(method.net, expected.net)


@pytest.mark.parametrize(("name", "value"), [("penalty", 0), ("inner_steps", 0), ("inner_rate", 0), ("decay", -1)])
def test_arguments_out_of_range_are_refused(tiny, name, value):
    with pytest.raises(ValueError, match=f"model.{name} is {value}, must be "):
        PFedMe(tiny.new_net(), **{name: value})


def test_dp_sgd_is_refused(tiny):
    """Its noise would cover one of the gradients of a step."""
    with pytest.raises(ValueError, match=r"^model.privacy is DPSGD, .* but PFedMe takes more"):
        tiny.train(PFedMe, norm=False, privacy=DPSGD(1.0))
