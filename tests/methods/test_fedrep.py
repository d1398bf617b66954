"""FedRep against a plain loop with one optimizer for the head and one for the body."""

import pytest
from declared_by_tests import HEAD, Cost

from fl_lightning import FedBABU, FedRep

COSTS = {"FedRep": Cost(down=(1, 0, -HEAD), up=(1, 0, -HEAD), client=(0, 0, HEAD), personal_by_rule=True)}


def is_head(name):
    return name.startswith("classifier")


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "adam tce"], indirect=True)
def test_the_head_is_fitted_first(tiny):
    """One epoch each; the body's batches go on where the head's end. Neither momentum nor decay moves what rests."""

    def visit(net, client, round):
        half = tiny.num_steps(client) // 2
        return tiny.in_phases(net, client, round, [("classifier", half), ("features", half)])

    method, (net, personal) = tiny.train(FedRep, local_epochs=1), tiny.rounds_with_personal_parts(is_head, visit)
    tiny.assert_same(method.net, net)
    tiny.assert_kept(method, personal)


@pytest.mark.parametrize("tiny", ["momentum"], indirect=True)
def test_phases_in_steps(tiny):
    """One step of the head, of each client of 4, 6, 4 and 2."""

    def visit(net, client, round):
        return tiny.in_phases(net, client, round, [("classifier", 1), ("features", 1)])

    tiny.num_steps = lambda client: 2
    method, (net, personal) = tiny.train(FedRep, head_steps=1, local_steps=1), tiny.rounds_with_personal_parts(is_head, visit)
    tiny.assert_same(method.net, net)
    tiny.assert_kept(method, personal)


def test_without_head_steps_it_trains_as_fedbabu(tiny):
    """The same bodies; the heads are those of the beginning."""
    method, expected = tiny.train(FedRep, head_steps=0), tiny.train(FedBABU)
    tiny.assert_same(method.net, expected.net, atol=0)
    start = tiny.new_net().classifier.state_dict()
    for client in range(4):
        kept = method.stored.states.read(client).weights
        tiny.assert_same({name.removeprefix("classifier."): value for name, value in kept.items()}, start, atol=0)


@pytest.mark.parametrize("setting", ["head_epochs", "head_steps"])
def test_negative_phases_are_refused(tiny, setting):
    with pytest.raises(ValueError, match=f"model.{setting} is -1, must be at least 0"):
        FedRep(tiny.new_net(), **{setting: -1})
