"""FedBN against FedAvg in which batch normalisation is set aside, in a plain loop."""

import pytest
from declared_by_tests import NORM, Cost
from options import NO_PICTURES
from torch import nn

from fl_lightning import FedAvg, FedBN

NEEDS = ({}, {"norm": True})
COSTS = {"FedBN": Cost(down=(1, 0, -NORM), up=(1, 0, -NORM), client=(0, 0, NORM))}


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "adam tce"], indirect=True)
def test_batch_normalisation_stays_with_its_client(tiny):
    """Scale, shift, running statistics and counter, of layer features.1, which no pattern of names would find."""
    method, (net, personal) = tiny.train(FedBN), tiny.rounds_with_personal_parts(lambda name: name.startswith("features.1."))
    tiny.assert_same(method.net, net)
    tiny.assert_kept(method, personal)
    assert len(personal[0]) == 5


def test_without_batch_normalisation_it_is_fedavg_and_says_so(tiny):
    """Bit for bit; GroupNorm is shared."""

    def with_group_norm(norm):
        net = type(tiny).new_net(tiny, norm=False)
        net.features.insert(1, nn.GroupNorm(1, 5).double())
        return net

    tiny.new_net = with_group_norm
    with pytest.warns(UserWarning, match="model.net has no BatchNorm layer: FedBN is FedAvg on it"):
        method = tiny.train(FedBN)
    tiny.assert_same(method.net, tiny.train(FedAvg).net, atol=0)
    assert not method.keeps_models


def test_a_net_without_such_layers_is_told_on_the_command_line(command_line):
    """Warnings of Lightning are not shown there, ours are."""
    result = command_line(*"fit --config digits_tce.yaml --model FedBN --trainer.max_steps 1".split(), *NO_PICTURES)
    assert result.returncode == 0
    assert "fl-lightning: warning: model.net has no BatchNorm layer: FedBN is FedAvg on it" in result.stderr
