"""MoFedSAM against FedSAM's gradient in FedCM's plain loop."""

import pytest
from declared_by_tests import Cost

from fl_lightning.methods import FedCM, FedSAM, MoFedSAM
from fl_lightning.privacy import DPSGD

COSTS = {"MoFedSAM": Cost(down=(1, 1, 0), server=(0, 1, 0))}


@pytest.mark.parametrize("tiny", ["sgd", "momentum tce"], indirect=True)
def test_rounds_equal_sam_and_momentum(tiny):
    """Three rounds."""
    method = tiny.train(MoFedSAM, alpha=0.3, rho=0.2)

    def gradient(local, received, client, inputs, targets):
        return tiny.sharp_gradient(local, client, inputs, targets, 0.2)

    net = tiny.rounds_with_momentum(0.3, gradient, uniform=False)
    tiny.assert_same(method.net, net, atol=1e-8)
    tiny.assert_moved(net)


def test_its_parts_alone(tiny):
    """rho = 0 is FedCM and alpha = 1 is FedSAM, bit for bit."""
    tiny.assert_same(tiny.train(MoFedSAM, alpha=0.3, rho=0).net, tiny.train(FedCM, alpha=0.3).net, atol=0)
    tiny.assert_same(tiny.train(MoFedSAM, alpha=1, rho=0.2).net, tiny.train(FedSAM, rho=0.2).net, atol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0.0}, "model.alpha is 0.0, must be above 0 and at most 1: 1 is without momentum"),
        ({"rho": -1.0}, "model.rho is -1.0, must be at least 0: 0 is FedCM"),
    ],
)
def test_settings_out_of_range_are_refused(tiny, settings, message):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError) as error:
        MoFedSAM(tiny.new_net(), **settings)
    assert str(error.value) == message


def test_dp_sgd_is_refused(tiny):
    with pytest.raises(ValueError, match=r"^model.privacy is DPSGD, .* but MoFedSAM takes more"):
        tiny.train(MoFedSAM, norm=False, privacy=DPSGD(1.0))
