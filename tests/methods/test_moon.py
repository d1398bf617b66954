"""MOON against equation 3 in a plain loop."""

import copy
import math
from functools import partial
from itertools import product

import pytest
import torch
from declared_by_tests import Cost
from older_torch import STACKED_FIXED_GROUP_NORM
from torch import nn

from fl_lightning import FedAvg
from fl_lightning.data import from_arrays
from fl_lightning.methods import MOON
from fl_lightning.models import CNN2, MLP, CharacterTransformer, MoonCNN, ResNet18
from fl_lightning.objectives import NextToken

COSTS = {"MOON": Cost(client=(1, 0, 0))}


def cosine(a, b):
    return (a * b).sum() / ((a * a).sum().sqrt() * (b * b).sum().sqrt())


def contrast(z, z_global, z_previous, temperature):
    """``-log [exp(s_g / T) / (exp(s_g / T) + exp(s_p / T))]``, mean over samples."""
    values = []
    for ours, near, far in zip(z, z_global, z_previous):
        s_g, s_p = (cosine(ours, other) / temperature for other in (near, far))
        values.append(-(s_g.exp() / (s_g.exp() + s_p.exp())).log())
    return sum(values) / len(values)


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "sgd tce", "adam tce"], indirect=True)
def test_rounds_equal_equation_3(tiny):
    """Three rounds of ``loss + mu contrast``: weights, and the previous models of the clients that took part.

    The features of the received and the previous model are taken in evaluation mode, with the statistics of that very model.
    Client 0's previous model in round 3 is what it had after its steps in round 1; at a first visit it is the received one.
    """
    mu, temperature = 1.5, 0.5
    method, net, previous = tiny.train(MOON, mu=mu, temperature=temperature), tiny.new_net(), {}

    def objective(local, received, client, inputs, targets):
        near, far = (copy.deepcopy(model).eval() for model in (received, previous.get(client, received)))
        z = local.features(inputs)
        apart = contrast(z, near.features(inputs).detach(), far.features(inputs).detach(), temperature)
        return tiny.losses(local.classifier(z), targets, client).mean() + mu * apart

    for round, cohort in tiny.rounds:
        locals = {client: tiny.visit(net, client, round, objective) for client in cohort}
        previous.update(locals)
        net.load_state_dict(tiny.mean(locals))
    tiny.assert_same(method.net, net)
    tiny.assert_moved(net)
    states = {client: {"previous": model.state_dict()} for client, model in previous.items()}
    tiny.assert_states(method, states)


def test_a_first_visit_adds_log_2_and_no_gradient(tiny):
    """Previous and received model are one: round 1 ends as FedAvg's, its losses are higher by ``mu log 2``."""
    data = tiny.new_data(cohorts=[[0, 1, 3]])
    moon, plain = tiny.train(MOON, data, mu=3.0), tiny.train(FedAvg, data)
    tiny.assert_same(moon.net, plain.net, atol=1e-12)
    for ours, other in zip(moon.reports[0].losses, plain.reports[0].losses, strict=True):
        assert ours - other == pytest.approx(3 * math.log(2), abs=1e-12)


def test_texts_have_one_vector(fit):
    """The gradient of a second visit's step: the mean over samples of the loss and the contrast of all places' features."""
    texts = torch.randint(0, 6, (8, 5), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    net, rate = CharacterTransformer((4,), 6, width=8, heads=2), 0.1
    data = from_arrays(texts[:, :-1], texts[:, 1:], [range(8)], batch_size=8, objective=NextToken(num_tokens=6))
    optimizer = partial(torch.optim.SGD, lr=rate)
    method = MOON(copy.deepcopy(net), local_steps=1, server_optimizer=partial(torch.optim.SGD, lr=0.5), optimizer=optimizer)
    fit(method, data, 2)
    inputs, targets = texts[:, :-1], texts[:, 1:]

    def visited(start, previous):
        model = copy.deepcopy(start)
        z = model.features(inputs)
        near, far = (other.features(inputs).detach().flatten(1) for other in (start, previous))
        logits = model.classifier(z).log_softmax(dim=-1)
        loss = -logits.gather(-1, targets[..., None]).mean() + contrast(z.flatten(1), near, far, 0.5)
        for weight, gradient in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True):
            weight.data -= rate * gradient
        return model

    def stepped(start, client):  # the server goes half the way
        for weight, other in zip(start.parameters(), client.parameters(), strict=True):
            weight.data += 0.5 * (other.data - weight.data)

    first = visited(net, net)
    stepped(net, first)
    stepped(net, visited(net, first))
    for name, weight in method.net.state_dict().items():
        torch.testing.assert_close(
            weight, net.state_dict()[name], rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_without_contrast_it_is_fedavg(tiny):
    """mu = 0: bit for bit."""
    tiny.assert_same(tiny.train(MOON, mu=0).net, tiny.train(FedAvg).net, atol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mu": -1.0}, "model.mu is -1.0, must be at least 0: 0 is FedAvg"),
        ({"temperature": 0.0}, "model.temperature is 0.0, must be above 0: the paper uses 0.5"),
    ],
)
def test_settings_out_of_range_are_refused(tiny, settings, message):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError) as error:
        MOON(tiny.new_net(), **settings)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("build", "engine"),
    [
        *product([CNN2, MLP, MoonCNN, partial(ResNet18, norm="mix")], ["sequential"]),
        *product([CNN2, MLP, MoonCNN], ["vectorized"]),
        pytest.param(partial(ResNet18, norm="mix"), "vectorized", marks=STACKED_FIXED_GROUP_NORM),
    ],
)
@pytest.mark.one_in(3)
def test_our_nets_have_features(fit, build, engine):
    """Two rounds on images of 17x17, with a first and a second visit; ResNet-18 is among them."""
    draws = torch.Generator().manual_seed(0)
    images, targets = torch.randn(8, 1, 17, 17, generator=draws), torch.arange(8) % 2
    data = from_arrays(images, targets, [[0, 1, 2, 3], [4, 5, 6, 7]], batch_size=4, classes=["a", "b"])
    method = MOON(build((1, 17, 17), 2), local_steps=1, engine=engine)
    fit(method, data, 2)
    assert all(weight.isfinite().all() for weight in method.net.parameters())


def test_a_net_without_features_is_refused(tiny):
    """One line that names the net and the parts that it lacks, before round 1."""

    class Plain(MOON):
        def __init__(self, net, **common):
            super().__init__(nn.Linear(3, 4).double(), **common)

    with pytest.raises(
        ValueError, match=r"^model.net Linear has a class layer of none .*, whose inputs MOON compares: set model.class_layer$"
    ):
        tiny.train(Plain)
