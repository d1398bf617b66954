"""FedETF against its head, a simplex that is written out, in a plain loop."""

import math

import pytest
import torch

from fl_lightning import FedAvg
from fl_lightning.methods import FedETF
from fl_lightning.methods.fedetf import simplex_logits

NEEDS = ({}, {"scale": 1.0})  # tests in float32 allow for no more: the default, 10, multiplies what is rounded


def corners(num_classes):
    """``sqrt(C / (C - 1)) (1 - 11^T / C)``, a corner a column."""
    entries = [[float(i == j) - 1 / num_classes for j in range(num_classes)] for i in range(num_classes)]
    return math.sqrt(num_classes / (num_classes - 1)) * torch.tensor(entries, dtype=torch.float64)


def test_corners_are_a_simplex():
    """Of length 1, and -1/(C - 1) between any two: the logits of corner i are those products."""
    for num_classes in (2, 3, 10):
        gram = simplex_logits(corners(num_classes).T)
        expected = torch.full((num_classes, num_classes), -1 / (num_classes - 1), dtype=torch.float64).fill_diagonal_(1)
        torch.testing.assert_close(gram, expected)


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "adam", "sgd tce"], indirect=True)
def test_rounds_equal_the_head(tiny):
    """Three rounds of the loss of ``s M^T v / |v|``, a product with each corner."""
    scale, simplex = 3.0, corners(4)
    method, net = tiny.train(FedETF, scale=scale), tiny.new_net()

    def objective(local, received, client, inputs, targets):
        rows = []
        for v in local(inputs):
            unit = v / sum(entry**2 for entry in v) ** 0.5
            rows.append(torch.stack([scale * sum(unit[i] * simplex[i, c] for i in range(4)) for c in range(4)]))
        return tiny.losses(torch.stack(rows), targets, client).mean()

    for round, cohort in tiny.rounds:
        locals = {client: tiny.visit(net, client, round, objective) for client in cohort}
        net.load_state_dict(tiny.mean(locals))
    tiny.assert_same(method.net, net)
    tiny.assert_moved(net)


def test_it_predicts_what_the_net_predicts():
    """The order of logits is that of the net's outputs."""
    outputs = torch.randn(50, 7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(simplex_logits(outputs).argsort(dim=-1), outputs.argsort(dim=-1))


def test_the_length_of_the_outputs_does_not_matter(tiny):
    """It is not FedAvg: the gradient has no part along v, so the first step differs."""
    actual, expected = (tiny.train(method, local_steps=1).net for method in (FedETF, FedAvg))
    assert not torch.allclose(actual.classifier.weight, expected.classifier.weight)


def test_a_scale_out_of_range_is_refused(tiny):
    with pytest.raises(ValueError) as error:
        FedETF(tiny.new_net(), scale=0.0)
    assert str(error.value) == "model.scale is 0.0, must be above 0: the code learns it, from 10 in its small CNN"
