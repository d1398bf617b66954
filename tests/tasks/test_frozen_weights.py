"""A frozen convolution on task streams: a constant, which neither travels nor is kept."""

import pytest
import torch
from pairs import pair_of

HIDDEN = 8 * (16 * 3)  # bytes of the weights between the frozen convolution and the class layer


@pytest.mark.parametrize(
    ("name", "sent", "layer"),
    [
        ("FedAvg TaskLearner", HIDDEN + 8 * 3, "conv."),
        ("SCAFFOLD TaskLearner", 2 * (HIDDEN + 8 * 3), "conv."),
        ("LocalOnly EWC", 0, "conv."),
        ("FedAvg APD", HIDDEN, "conv.parametrizations.weight.original"),
        ("FedWeIT", HIDDEN // 3, "conv.parametrizations.weight.original"),  # of one output in three, as the mask has it
    ],
)
def test_what_is_frozen_stays_where_it_is(tiny, name, sent, layer):
    """Bytes of a round in which no task ends, states without the frozen layer or its base, its bias of no task."""
    net = tiny.new_net()
    net.conv.requires_grad_(False)
    method = tiny.train(pair_of(name), net=net)
    assert method.seen.rounds[0].bytes_up == 3 * sent
    frozen = [key for key in method.net.state_dict() if key.startswith((layer, "conv.bias"))]
    for client in method.stored.states.clients():
        state = method.stored.states.read(client)
        kept = [state.weights, *(task.tensors for task in state.tasks.values())]
        assert not {name for part in kept for name in part} & {*frozen}
        assert "conv" not in state.method["tasks"].get("base", {})
    assert torch.equal(method.net.conv.bias, tiny.new_net().conv.bias)
