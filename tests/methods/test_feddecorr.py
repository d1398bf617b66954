"""FedDecorr against its term by hand, and in a plain loop."""

import pytest
import torch
from torch import nn

from fl_lightning import FedAvg
from fl_lightning.methods import FedDecorr
from fl_lightning.methods.feddecorr import decorrelation
from fl_lightning.privacy import DPSGD

# Two samples have correlations of 1 or -1 for any two features, and a gradient of rounding alone.
NEEDS = ({"batch_size": None}, {})


def by_correlations(features):
    """``sum_ij r_ij^2 / d^2``, r of numpy's kind, feature by feature; 0 for a feature that is constant."""
    z = features.flatten(1)
    centred = z - z.mean(dim=0)
    total = 0.0
    for i in range(z.shape[1]):
        for j in range(z.shape[1]):
            a, b = centred[:, i], centred[:, j]
            covariance, variances = (a * b).mean(), (a.square().mean() + 1e-8) * (b.square().mean() + 1e-8)
            total = total + covariance**2 / variances
    return total / z.shape[1] ** 2


def test_the_term_of_two_features():
    """Perfectly correlated: all four entries are 1. Uncorrelated: the diagonal alone, 2/4. Constant: 1/4."""
    ramp, wave = torch.tensor([-1.0, 0.0, 1.0]), torch.tensor([1.0, -2.0, 1.0])
    for other, expected in ((-2 * ramp, 1.0), (wave, 0.5), (torch.ones(3), 0.25)):
        assert decorrelation(torch.stack([ramp, other], dim=1)) == pytest.approx(expected, abs=1e-6)


def test_padding_does_not_count():
    draws = torch.Generator().manual_seed(0)
    z = torch.randn(6, 3, generator=draws, dtype=torch.float64)
    real = torch.tensor([True, True, False, True, True, False])
    assert decorrelation(z, real) == pytest.approx(float(decorrelation(z[real])), abs=1e-12)
    assert decorrelation(z[:1]) == 0


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "sgd tce", "adam"], indirect=True)
def test_rounds_equal_the_paper(tiny):
    """Three rounds of ``loss + beta ||K||^2 / d^2`` of the batch's features; one batch has a single sample, whose K is 0."""
    method, net = tiny.train(FedDecorr, beta=0.7), tiny.new_net()

    def objective(local, received, client, inputs, targets):
        z = local.features(inputs)
        return tiny.losses(local.classifier(z), targets, client).mean() + 0.7 * by_correlations(z)

    for round, cohort in tiny.rounds:
        net.load_state_dict(tiny.mean({client: tiny.visit(net, client, round, objective) for client in cohort}))
    tiny.assert_same(method.net, net, atol=1e-8)
    tiny.assert_moved(net)


def test_without_the_term_it_is_fedavg(tiny):
    """beta = 0: bit for bit."""
    tiny.assert_same(tiny.train(FedDecorr, beta=0).net, tiny.train(FedAvg).net, atol=0)


def test_negative_beta_is_refused(tiny):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError, match=r"^model.beta is -0.1, must be at least 0: 0 is FedAvg$"):
        FedDecorr(tiny.new_net(), beta=-0.1)


def test_dp_sgd_is_refused(tiny):
    """A sample's gradient is not its own: the term is of the whole batch."""
    with pytest.raises(ValueError, match=r"^model.privacy is DPSGD, which .* FedDecorr has other samples in a step"):
        tiny.train(FedDecorr, norm=False, privacy=DPSGD(1.0))


def test_a_net_without_features_is_refused(tiny):
    """One line that names the net and the parts that it lacks, before round 1."""

    class Plain(FedDecorr):
        def __init__(self, net, **common):
            super().__init__(nn.Linear(3, 4).double(), **common)

    with pytest.raises(
        ValueError, match=r"^model.net Linear has .* none .*, whose inputs FedDecorr decorrelates: set model.class_layer$"
    ):
        tiny.train(Plain)
