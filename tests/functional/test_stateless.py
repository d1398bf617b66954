"""A net with other tensors in it, against the same net with these values copied in."""

import copy

import pytest
import torch
from torch import nn

from fl_lightning.functional.stateless import call_with, tensor_slots


class Net(nn.Module):
    """A layer with two names, a weight in two layers, one twice in a layer, and buffers."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)
        self.again, self.last.weight = self.first, self.first.weight
        self.scale = self.shift = nn.Parameter(torch.ones(3))

    def forward(self, inputs):
        return self.last(self.norm(self.again(self.first(inputs)))) * self.scale + self.shift


@pytest.fixture
def net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net().double()


def test_slots_by_hand(net):
    """One place of the layer with two names, two of the shared weight and of the parameter with two attributes."""
    slots = tensor_slots(net)
    assert slots["first.weight"] == ["first.weight", "last.weight"]
    assert slots["scale"] == ["scale", "shift"]
    assert slots["first.bias"] == ["first.bias"]
    named = [name for held in (net.named_parameters(), net.named_buffers()) for name, _ in held]
    assert sorted(slots) == sorted(named)
    assert tensor_slots(nn.Sequential(nn.Linear(2, 2))) == {"0.weight": ["0.weight"], "0.bias": ["0.bias"]}


def test_the_net_holds_the_others_during_the_call_alone(net):
    """The outputs are those of a copy with doubled weights; then every attribute is what it was, twice over."""
    inputs, held = torch.randn(4, 3).double(), dict(net.named_parameters(remove_duplicate=False))
    doubled = {name: 2 * weight.detach() for name, weight in net.named_parameters()}
    other = copy.deepcopy(net)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(2)
    for _ in range(2):
        torch.testing.assert_close(call_with(net, tensor_slots(net), doubled, (inputs,)), other(inputs))
        assert all(weight is held[name] for name, weight in net.named_parameters(remove_duplicate=False))


def test_gradients_by_a_tensor_of_two_names(net):
    """d sum(out) / d shared weight, to the gradient that the net itself has."""
    inputs = torch.randn(4, 3).double()
    leaf = net.first.weight.detach().clone().requires_grad_()
    (actual,) = torch.autograd.grad(call_with(net.eval(), tensor_slots(net), {"first.weight": leaf}, (inputs,)).sum(), leaf)
    (expected,) = torch.autograd.grad(net(inputs).sum(), net.first.weight)
    torch.testing.assert_close(actual, expected)
