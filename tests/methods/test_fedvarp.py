"""FedVARP against its Algorithm 1 in a plain loop, with a table of all clients' last changes."""

import pytest
import torch
from declared_by_tests import Cost

from fl_lightning import FedAvg
from fl_lightning.methods import FedVARP

COSTS = {"FedVARP": Cost(client=(0, 1, 0), server=(0, 1, 0))}


@pytest.mark.parametrize("tiny", ["sgd", "momentum tce", "adam"], indirect=True)
@pytest.mark.parametrize("weighting", ["uniform", "n_weighted"])
def test_rounds_equal_algorithm_1(tiny, weighting):
    """``w <- w + mean_j y_j + sum_k p_k (D_k - y_k)``, then ``y_k <- D_k``; three rounds. Client 4 keeps the change 0."""
    method, net = tiny.train(FedVARP, server_weighting=weighting), tiny.new_net()
    last = {client: {name: torch.zeros_like(w) for name, w in net.named_parameters()} for client in range(tiny.num_clients)}
    states = {}
    for round, cohort in tiny.rounds:
        locals = {client: tiny.visit(net, client, round) for client in cohort}
        new = tiny.mean(locals, uniform=weighting == "uniform")
        sizes = {client: 1 if weighting == "uniform" else tiny.shard_sizes[client] for client in cohort}
        for name, w in net.named_parameters():
            step = sum(last[j][name] for j in last) / len(last)
            for client, local in locals.items():
                change = (local.get_parameter(name) - w).detach()
                step = step + sizes[client] / sum(sizes.values()) * (change - last[client][name])
            new[name] = w.detach() + step
        for client, local in locals.items():
            last[client] = {name: (local.get_parameter(name) - w).detach() for name, w in net.named_parameters()}
            states[client] = {"change": last[client]}
        net.load_state_dict(new)
    tiny.assert_same(method.net, net)
    tiny.assert_states(method, states)


def test_a_full_first_round_is_fedavg(tiny):
    """All changes are 0 before it: ``w + mean D_k``."""
    data = tiny.new_data(cohorts=[[0, 1, 2, 3, 4]])
    plain = tiny.train(FedAvg, data, norm=False, server_weighting="uniform")
    tiny.assert_same(tiny.train(FedVARP, data, norm=False).net, plain.net, atol=1e-12)
