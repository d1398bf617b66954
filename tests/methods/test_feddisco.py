"""FedDisco against its weights by hand, and in a plain loop."""

import copy
import math

import pytest
import torch

from fl_lightning import FedAvg
from fl_lightning.data import from_arrays
from fl_lightning.methods import FedDisco
from fl_lightning.methods.feddisco import disco_weights


def test_weights_by_hand():
    """Of two classes: client 0 has one alone, KL = log 2; client 1 has both, KL = 0. Their shares are 1 and 0.

    ``3/4 - 1/2 + 1/10 = .35`` and ``1/4 + 1/10 = .35``; with a = 1 client 0's ``3/4 - 1 + 1/10`` is below 0.
    """
    counts = torch.tensor([[6.0, 0.0], [1.0, 1.0]])
    assert disco_weights([6, 2], counts, 0.5, 0.1) == pytest.approx([0.35, 0.35])
    assert disco_weights([6, 2], counts, 1.0, 0.1) == pytest.approx([0.0, 0.35])


def test_even_clients_have_no_discrepancy():
    assert disco_weights([1, 3], torch.tensor([[2, 2], [6, 6]]), 0.5, 0.0) == pytest.approx([0.25, 0.75])


def test_a_client_without_a_label_has_no_discrepancy():
    """KL = 0 for even classes, log 2 for one class, 0 for none: ``d = (0, 1, 0)``, and all n_k are 1/3."""
    weights = disco_weights([1, 1, 1], torch.tensor([[1, 1], [2, 0], [0, 0]]), 0.25, 0.1)
    assert weights == pytest.approx([1 / 3 + 0.1, 1 / 3 - 0.25 + 0.1, 1 / 3 + 0.1])


@pytest.mark.parametrize("tiny", ["sgd", "momentum tce"], indirect=True)
@pytest.mark.parametrize("weighting", ["n_weighted", "uniform"])
def test_rounds_equal_a_weighted_mean(tiny, weighting):
    """Three rounds; Kullback-Leibler divergences from sums over the labels of every shard."""
    a, b = 0.7, 0.2
    method, net = tiny.train(FedDisco, a=a, b=b, server_weighting=weighting), tiny.new_net()

    def gap(client):
        labels = tiny.shard(client)[1].tolist()
        shares = [labels.count(c) / len(labels) for c in range(4)]
        return sum(q * math.log(q / 0.25) for q in shares if q > 0)

    for round, cohort in tiny.rounds:
        locals = {client: tiny.visit(net, client, round) for client in cohort}
        sizes = {client: 1 if weighting == "uniform" else tiny.shard_sizes[client] for client in cohort}
        weights = {k: max(0.0, sizes[k] / sum(sizes.values()) - a * gap(k) / sum(map(gap, cohort)) + b) for k in cohort}
        new = tiny.mean(locals)
        for name, value in new.items():
            if value.is_floating_point():
                total = sum(weights[k] * local.state_dict()[name] for k, local in locals.items())
                new[name] = total / sum(weights.values())
        for name, buffer in method.net.named_buffers():
            if not buffer.is_floating_point():
                mean = sum(weights[k] * local.state_dict()[name].double() for k, local in locals.items())
                new[name] = (mean / sum(weights.values()) + 1e-9).floor().to(buffer.dtype)
        net.load_state_dict(new)
    tiny.assert_same(method.net, net)
    tiny.assert_moved(net)


def test_a_second_fit_weighs_its_own_clients(fit):
    """Of other samples, though round and cohort are those of the first fit."""
    inputs, targets = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    targets[:10] = 0
    few, many = [*range(10)], [*range(10, 30)]
    first, second = (from_arrays(inputs, targets, clients, batch_size=None) for clients in ([few, many], [many, few]))
    method = FedDisco(torch.nn.Linear(4, 3), local_steps=1)
    fit(method, first, 1)
    fresh = FedDisco(copy.deepcopy(method.net), local_steps=1)
    for one in (method, fresh):
        fit(one, second, 1)
    assert torch.equal(method.net.weight, fresh.net.weight)


def test_without_both_it_is_fedavg(tiny):
    """a = b = 0: the weights are shares of the samples."""
    tiny.assert_same(tiny.train(FedDisco, a=0, b=0).net, tiny.train(FedAvg).net, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"a": -1.0}, "model.a is -1.0, must be at least 0 and finite: 0 leaves the discrepancy out"),
        ({"b": math.inf}, "model.b is inf, must be at least 0 and finite: the authors' code uses 0.1"),
    ],
)
def test_settings_out_of_range_are_refused(tiny, settings, message):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError) as error:
        FedDisco(tiny.new_net(), **settings)
    assert str(error.value) == message
