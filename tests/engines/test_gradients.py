"""Gradients of a stack of clients, by autograd below torch.vmap."""

from functools import partial

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from fl_lightning.engines.gradients import below_the_stack

CLIENTS, SAMPLES = 3, 5
NET = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 3)).double()


class Operators(TorchDispatchMode):
    """Names of all that is computed."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.append(operator.overloadpacket.__name__)
        return operator(*args, **(kwargs or {}))


def drawn(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


WEIGHTS = {name: weight.detach() + 0.1 * drawn(CLIENTS, *weight.shape) for name, weight in NET.named_parameters()}
IMAGES = drawn(CLIENTS, SAMPLES, 2, 4, 4)


def loss(images, weights, held):
    value = functional_call(NET, weights, images).square().mean() + held["offset"]
    return value, {"twice": 2 * value}


def of_each(weights, images):
    """By plain autograd, client after client."""
    rows = [weight.clone().requires_grad_() for weight in weights]
    value, _ = loss(images, dict(zip(WEIGHTS, rows, strict=True)), {"offset": 1.0})
    return value.detach(), torch.autograd.grad(value, rows)


def check(gradients, values, doubled, weights):
    for client in range(CLIENTS):
        value, expected = of_each([weight[client] for weight in weights.values()], IMAGES[client])
        torch.testing.assert_close(values[client], value)
        torch.testing.assert_close(doubled[client], 2 * value)
        for name, gradient in zip(WEIGHTS, expected, strict=True):
            torch.testing.assert_close(gradients[name][client], gradient)


def step(weights, images):
    gradients, (value, more) = below_the_stack(partial(loss, images), weights, {"offset": 1.0})
    return gradients, value, more["twice"]


def test_a_norms_backward_pass_is_one_operation_for_all_clients():
    with torch.no_grad(), Operators() as operators:
        gradients, values, doubled = torch.vmap(step)(WEIGHTS, IMAGES)
    assert operators.names.count("native_group_norm_backward") == 1
    assert not any(tensor.requires_grad for tensor in [*gradients.values(), values, doubled])
    check(gradients, values, doubled, WEIGHTS)


def test_weights_that_all_clients_share_have_a_gradient_of_each():
    shared = {name: weight[0] for name, weight in WEIGHTS.items()}
    with torch.no_grad():
        results = torch.vmap(step, in_dims=(None, 0))(shared, IMAGES)
    check(*results, {name: weight.expand(CLIENTS, *weight.shape) for name, weight in shared.items()})


def test_a_transform_within_the_stack_is_differentiated_by_a_transform():
    """A hook that looks at each sample alone: the mean of its gradients is that of the batch."""

    def each_sample(weights, images):
        gradients, values, doubled = torch.vmap(step, in_dims=(None, 0))(weights, images[:, None])
        return {name: gradient.mean(0) for name, gradient in gradients.items()}, values.mean(), doubled.mean()

    with torch.no_grad():
        results = torch.vmap(each_sample)(WEIGHTS, IMAGES)
    check(*results, WEIGHTS)
