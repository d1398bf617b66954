"""FedBABU against a plain loop that trains the body alone."""

import pytest
from declared_by_tests import HEAD, Cost

from fl_lightning import FedBABU

# A head that is the same for all is neither sent nor kept.
COSTS = {"FedBABU": Cost(down=(1, 0, -HEAD), up=(1, 0, -HEAD), personal_by_rule=True)}


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "adam tce"], indirect=True)
def test_the_head_stays_as_it_began(tiny):
    """Bit for bit, under momentum and weight decay too; the body is FedAvg's with another optimizer. Nothing is kept."""

    def visit(net, client, round):
        return tiny.in_phases(net, client, round, [("features", tiny.num_steps(client))])

    method, (net, _) = tiny.train(FedBABU), tiny.rounds_with_personal_parts(lambda name: False, visit)
    tiny.assert_same(method.net, net)
    tiny.assert_same(method.net.classifier, tiny.new_net().classifier, atol=0)
    assert method.stored.states.clients() == []
    assert method.has_global_model
    assert not method.keeps_models


@pytest.mark.parametrize(
    ("head", "line"),
    [
        (
            [],
            "model.head is [], which leaves no weight as it began: use FedAvg and set callbacks.personal_accuracy.fine_tune to "
            "true",
        ),
        (["fc.*"], "model.head has 'fc.*', which fits no weight of model.net: its layers are features, classifier"),
        (["*"], "model.head is ['*'], which leaves no weight of model.net to train: name fewer"),
    ],
)
def test_patterns_that_fit_nothing_or_everything_are_refused(tiny, head, line):
    with pytest.raises(ValueError) as error:
        tiny.train(FedBABU, head=head)
    assert str(error.value) == line
