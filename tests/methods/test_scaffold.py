"""SCAFFOLD against Algorithm 1 in a plain loop, both options."""

import copy
from functools import partial

import pytest
import torch
from declared_by_tests import Cost
from torch.optim.lr_scheduler import LambdaLR, LinearLR

from fl_lightning import FedAvg
from fl_lightning.methods import SCAFFOLD

COSTS = {
    "SCAFFOLD": Cost(down=(1, 1, 0), up=(1, 1, 0), client=(0, 1, 0), server=(0, 1, 0)),
    "SCAFFOLD, I": Cost((1, 1, 0), (1, 1, 0), (0, 1, 0), (0, 1, 0), settings={"option": "I"}),
}


def full_gradient(tiny, net, client):
    """Of the mean loss over the client's shard, by name, in training mode on a copy, whose statistics are thrown away."""
    local = copy.deepcopy(net).train()
    inputs, targets = tiny.shard(client)
    value = tiny.losses(local(inputs), targets, client).mean()
    return dict(zip(dict(local.named_parameters()), torch.autograd.grad(value, list(local.parameters()))))


def plain_scaffold(tiny, option, uniform):
    """``y <- y - lr (g - c_i + c)``, then c_i, x and c as in Algorithm 1; returns x, c and c_i of those who took part."""
    net = tiny.new_net()
    zeros = {name: torch.zeros_like(weight) for name, weight in net.named_parameters()}
    c, variates = dict(zeros), {}

    def correct(client, name, gradient):
        return gradient - variates.get(client, zeros)[name] + c[name]

    for round, cohort in tiny.rounds:
        x = {name: weight.detach().clone() for name, weight in net.named_parameters()}
        locals, change = {}, dict(zeros)
        for client in cohort:
            c_i = variates.get(client, zeros)
            y = tiny.visit(net, client, round, correct=correct)
            length = tiny.length(client, round)
            if option == "I":
                new = full_gradient(tiny, net, client)
            else:
                new = {name: c_i[name] - c[name] + (x[name] - w.detach()) / length for name, w in y.named_parameters()}
            change = {name: change[name] + new[name] - c_i[name] for name in c}
            locals[client], variates[client] = y, new
        c = {name: c[name] + change[name] / tiny.num_clients for name in c}
        net.load_state_dict(tiny.mean(locals, uniform))
    return net, c, variates


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "sgd tce", "adam tce"], indirect=True)
@pytest.mark.parametrize("weighting", ["uniform", "n_weighted"])
@pytest.mark.parametrize("option", ["I", "II"])
def test_rounds_equal_algorithm_1(tiny, option, weighting):
    """Three rounds: weights, the server's variate and those of the clients that took part, who alone have one.

    K counts steps, which differ from client to client, and with momentum how often their gradients count; the rate of the
    division is that of the round's steps. The sum of changes is divided by all five clients, however many take part and
    whatever they weigh. Weight decay and momentum come after the correction; the statistics of BatchNorm are averaged and have
    no variate.
    """
    method = tiny.train(SCAFFOLD, option=option, server_weighting=weighting)
    net, c, variates = plain_scaffold(tiny, option, weighting == "uniform")
    tiny.assert_same(method.net, net)
    tiny.assert_moved(net)
    tiny.assert_same(method.server_states.tensors("variate"), c)
    tiny.assert_states(method, {client: {"variate": variate} for client, variate in variates.items()})


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}], ids=str)
@pytest.mark.parametrize("schedule", [None, partial(LinearLR, start_factor=0.01, total_iters=4)], ids=["one rate", "warm-up"])
def test_variates_of_a_constant_gradient_are_the_gradient(tiny, settings, schedule):
    """``c_k - c + (g - c_k + c) = g`` after every visit, however the optimizer adds up its steps."""
    optimizer = {"optimizer": lambda weights: torch.optim.SGD(weights, lr=0.1, **settings)}
    heavy = tiny.train(SCAFFOLD, loss=tiny.first_output, visit_lr_scheduler=schedule, **optimizer)
    expected = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    for client in range(4):
        variate = heavy.stored.states.read(client).method["variate"]["classifier.bias"]
        torch.testing.assert_close(variate, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("engine", ["sequential", "vectorized", "captured"])
def test_a_rate_of_0_keeps_the_variates(tiny, engine):
    """After round 2 at a rate of 0 weights and variates are those after round 1, bit for bit; newcomers have zeros."""
    data = tiny.new_data(cohorts=[[0, 1, 3], [0, 1, 2]])
    first, second = (
        tiny.train(
            SCAFFOLD,
            data,
            norm=False,
            rounds=rounds,
            engine=engine,
            client_lr_scheduler=lambda one: LambdaLR(one, lambda past: float(past == 0)),
        )
        for rounds in (1, 2)
    )
    assert second.reports[1].nonfinite == []
    tiny.assert_same(dict(second.state_dict()), dict(first.state_dict()), atol=0)
    for client in (0, 1, 3):
        tiny.assert_same_state(second.stored.states.read(client), first.stored.states.read(client), atol=0)
    assert not any(tensor.any() for tensor in second.stored.states.read(2).tensors())


@pytest.mark.parametrize("option", ["I", "II"])
def test_round_1_is_uniform_fedavg(tiny, option):
    """From variates of zero, any number of local steps: bit for bit. The second round differs, as not all take part."""
    data = tiny.new_data(cohorts=[[0, 1, 3]])
    first = tiny.train(SCAFFOLD, data, option=option).net
    tiny.assert_same(first, tiny.train(FedAvg, data, server_weighting="uniform").net, atol=0)

    data = tiny.new_data(cohorts=[[0, 1, 3], [1, 2]])
    second, average = tiny.train(SCAFFOLD, data, option=option).net, tiny.train(FedAvg, data, server_weighting="uniform").net
    for name, weight in average.named_parameters():
        assert (second.get_parameter(name) - weight).abs().max() > 1e-4, name


def test_one_step_of_all_clients_is_uniform_fedavg(tiny):
    """With one local step and everyone in every round, c is the mean of the c_i and the corrections cancel in the mean."""
    data = tiny.new_data(cohorts=[[0, 1, 2, 3, 4]] * 3)
    actual, expected = (
        tiny.train(method, data, local_steps=1, server_weighting="uniform").net for method in (SCAFFOLD, FedAvg)
    )
    tiny.assert_same(actual, expected, atol=1e-14)


def test_the_server_rate_moves_the_weights_alone(tiny):
    """``x <- x + 0.5 * mean(y - x)`` after one round; c does not know of it."""
    data = tiny.new_data(cohorts=[[0, 1, 3]])
    whole, half = (
        tiny.train(SCAFFOLD, data, server_optimizer=lambda weights, rate=rate: torch.optim.SGD(weights, lr=rate))
        for rate in (1.0, 0.5)
    )
    for name, start in tiny.new_net().named_parameters():
        torch.testing.assert_close(half.net.get_parameter(name), (start + whole.net.get_parameter(name)) / 2, msg=name)
    tiny.assert_same(half.server_states.tensors("variate"), whole.server_states.tensors("variate"), atol=0)


def test_an_unknown_option_is_refused(tiny):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError, match=r"^model.option is 'III', must be one of I, II$"):
        SCAFFOLD(tiny.new_net(), option="III")
