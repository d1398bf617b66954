"""LG-FedAvg against FedAvg in which bodies are set aside, in a plain loop."""

import pytest
from declared_by_tests import HEAD, Cost

from fl_lightning import FedPer, LGFedAvg

ON_TASKS = {"shared": ["classifier.*", "hidden.*"]}  # the class layer is not shared
COSTS = {"LGFedAvg": Cost(down=(0, 0, HEAD), up=(0, 0, HEAD), client=(1, 0, -HEAD), personal_by_rule=True)}


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "adam tce"], indirect=True)
def test_lower_layers_stay_with_their_clients(tiny):
    """Three rounds, running statistics with the body; the heads are averaged."""
    method, (net, personal) = tiny.train(LGFedAvg), tiny.rounds_with_personal_parts(lambda name: name.startswith("features"))
    tiny.assert_same(method.net, net)
    tiny.assert_kept(method, personal)


def test_with_the_parts_swapped_it_is_fedper(tiny):
    """Bit for bit."""
    method, expected = tiny.train(LGFedAvg, shared=["features.*"]), tiny.train(FedPer)
    tiny.assert_same(method.net, expected.net, atol=0)
    for client in range(4):
        tiny.assert_same_state(method.stored.states.read(client), expected.stored.states.read(client), atol=0)


@pytest.mark.parametrize(
    ("shared", "line"),
    [
        ([], "model.shared is [], which leaves no weight of model.net to share: use LocalOnly"),
        (["head.*"], "model.shared has 'head.*', which fits no weight of model.net: its layers are features, classifier"),
        (["*"], "model.shared is ['*'], which leaves clients no personal weight: use FedAvg"),
    ],
)
def test_patterns_that_fit_nothing_or_everything_are_refused(tiny, shared, line):
    with pytest.raises(ValueError) as error:
        tiny.train(LGFedAvg, shared=shared)
    assert str(error.value) == line
