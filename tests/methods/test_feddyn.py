"""FedDyn against Algorithm 1 in a plain loop."""

import pytest
import torch
from declared_by_tests import Cost

from fl_lightning.methods import FedDyn, FedProx

COSTS = {"FedDyn": Cost(client=(0, 1, 0), server=(0, 1, 0))}  # the server has the plain sum from the models

ALPHA = 0.3


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "sgd tce", "adam tce"], indirect=True)
@pytest.mark.parametrize("weighting", ["uniform", "n_weighted"])
def test_rounds_equal_algorithm_1(tiny, weighting):
    """Clients minimise ``f_k(w) - <g_k, w> + alpha/2 ||w - x||^2``; then g_k, h and x as in the paper, three rounds.

    h takes the plain sum over the round's clients, divided by all five; it shifts the weights and no statistics.
    """
    method = tiny.train(FedDyn, alpha=ALPHA, server_weighting=weighting)
    net = tiny.new_net()
    zeros = {name: torch.zeros_like(weight) for name, weight in net.named_parameters()}
    h, accumulated = dict(zeros), {}

    def objective(local, received, client, inputs, targets):
        value, g = tiny.losses(local(inputs), targets, client).mean(), accumulated.get(client, zeros)
        for (name, w), x in zip(local.named_parameters(), received.parameters()):
            value = value - (g[name] * w).sum() + ALPHA / 2 * ((w - x.detach()) ** 2).sum()
        return value

    for round, cohort in tiny.rounds:
        x = {name: weight.detach().clone() for name, weight in net.named_parameters()}
        locals = {client: tiny.visit(net, client, round, objective) for client in cohort}
        for client, local in locals.items():
            g = accumulated.get(client, zeros)
            accumulated[client] = {name: g[name] - ALPHA * (w.detach() - x[name]) for name, w in local.named_parameters()}
        for name in h:
            moved = sum(local.get_parameter(name).detach() - x[name] for local in locals.values())
            h[name] = h[name] - ALPHA / tiny.num_clients * moved
        new = tiny.mean(locals, uniform=weighting == "uniform")
        net.load_state_dict({name: value - h[name] / ALPHA if name in h else value for name, value in new.items()})
    tiny.assert_same(method.net, net)
    tiny.assert_moved(net)
    tiny.assert_same(method.server_states.tensors("h"), h)
    tiny.assert_states(method, {client: {"g": g} for client, g in accumulated.items()})


def test_round_1_goes_beyond_fedprox(tiny):
    """Without state the clients are those of FedProx with ``mu = alpha``, and ``x - h / alpha`` adds |S|/N of the delta."""
    data = tiny.new_data(cohorts=[[0, 1, 3]])
    dyn, prox = tiny.train(FedDyn, data, alpha=ALPHA), tiny.train(FedProx, data, mu=ALPHA, server_weighting="uniform")
    for name, x in tiny.new_net().named_parameters():
        mean = prox.net.get_parameter(name)
        torch.testing.assert_close(dyn.net.get_parameter(name), mean + 3 / 5 * (mean - x), atol=1e-14, rtol=0, msg=name)
    for name, buffer in prox.net.named_buffers():
        assert torch.equal(dyn.net.get_buffer(name), buffer), name


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan")])
def test_alpha_must_be_above_0(tiny, alpha):
    """h is divided by it: one line with the key, the value and what is allowed."""
    with pytest.raises(ValueError, match=rf"^model.alpha is {alpha}, must be above 0: such as 0.1$"):
        FedDyn(tiny.new_net(), alpha=alpha)
