"""FedSAM against two passes a step in a plain loop."""

import pytest

from fl_lightning import FedAvg
from fl_lightning.methods import FedSAM
from fl_lightning.privacy import DPSGD


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "sgd tce", "adam"], indirect=True)
def test_rounds_equal_two_passes_a_step(tiny):
    """Three rounds, with BatchNorm between the layers."""
    rho = 0.3
    method, net = tiny.train(FedSAM, rho=rho), tiny.new_net()

    def direction(local, received, client, inputs, targets):
        return tiny.sharp_gradient(local, client, inputs, targets, rho)

    for round, cohort in tiny.rounds:
        net.load_state_dict(tiny.mean({k: tiny.visit_along(net, k, round, direction) for k in cohort}))
    tiny.assert_same(method.net, net, atol=1e-8)
    tiny.assert_moved(net)


def test_without_ascent_it_is_fedavg(tiny):
    """rho = 0: bit for bit."""
    tiny.assert_same(tiny.train(FedSAM, rho=0).net, tiny.train(FedAvg).net, atol=0)


def test_negative_rho_is_refused(tiny):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError, match=r"^model.rho is -0.1, must be at least 0: 0 is FedAvg$"):
        FedSAM(tiny.new_net(), rho=-0.1)


def test_dp_sgd_is_refused(tiny):
    """Its noise is drawn once a step."""
    with pytest.raises(
        ValueError, match=r"^model.privacy is DPSGD, which releases one .* but FedSAM takes more: use UserLevelDP"
    ):
        tiny.train(FedSAM, norm=False, privacy=DPSGD(1.0))
