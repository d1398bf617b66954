"""FedPer against FedAvg in which heads are set aside, in a plain loop."""

import pytest
from declared_by_tests import HEAD, Cost

from fl_lightning import FedPer, FedRep

COSTS = {"FedPer": Cost(down=(1, 0, -HEAD), up=(1, 0, -HEAD), client=(0, 0, HEAD), personal_by_rule=True)}


def is_head(name):
    return name.startswith("classifier")


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "adam tce"], indirect=True)
def test_heads_stay_with_their_clients(tiny):
    """Three rounds; client 2 comes in the second for the first time and begins with the initial head."""
    method, (net, personal) = tiny.train(FedPer), tiny.rounds_with_personal_parts(is_head)
    tiny.assert_same(method.net, net)
    tiny.assert_kept(method, personal)


def test_a_clients_personal_model_is_its_head_on_the_newest_body(tiny):
    method, (net, personal) = tiny.train(FedPer), tiny.rounds_with_personal_parts(is_head)
    for client in range(4):
        expected = tiny.new_net()
        expected.load_state_dict({**net.state_dict(), **personal[client]})
        tiny.assert_personal(method, client, expected)
    tiny.assert_personal(method, 4, net)  # never took part: the initial head
    assert method.keeps_models
    assert not method.has_global_model


@pytest.mark.parametrize(
    ("personal", "line"),
    [
        ([], "model.personal is [], which leaves clients no personal weight: use FedAvg"),
        (["head.*"], "model.personal has 'head.*', which fits no weight of model.net: its layers are features, classifier"),
        (
            ["*"],
            "model.personal is ['*'], which leaves no weight of model.net to share: use fl_lightning.LocalOnly to train each "
            "client by itself",
        ),
    ],
)
@pytest.mark.parametrize("method", [FedPer, FedRep])
def test_patterns_that_fit_nothing_or_everything_are_refused(tiny, method, personal, line):
    with pytest.raises(ValueError) as error:
        tiny.train(method, personal=personal)
    assert str(error.value) == line
