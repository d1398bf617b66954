"""Federations of each objective: weights, scores and forgetting as in a plain loop over the same batches, under each engine."""

import copy

import pytest
import torch
from torch import nn

from fl_lightning import FedAvg, FederatedStrategy, FedPer
from fl_lightning.callbacks import ClientForgetting, PerClassAccuracy, PersonalAccuracy, RoundForgetting
from fl_lightning.data import from_arrays
from fl_lightning.objectives import MultiLabel, NextToken, Regression
from fl_lightning.privacy import DPSGD

GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(60, 4, generator=GENERATOR)
MIXED = INPUTS @ torch.randn(4, 3, generator=GENERATOR)
TEXTS = torch.randint(0, 6, (60, 5), generator=GENERATOR)
TRAIN, TEST = slice(40), slice(40, 60)
STEPS, BATCH, RATE = 3, 5, 0.5


class Bigrams(nn.Module):
    """Logits of the next token from each token alone."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(6, 4), nn.Linear(4, 6)

    def forward(self, tokens):
        return self.head(self.embed(tokens))


def bce(outputs, targets):
    p = outputs.sigmoid()
    return -(targets * p.log() + (1 - targets) * (1 - p).log()).mean(dim=1).mean()


def tokens_loss(outputs, targets):
    return -outputs.log_softmax(dim=-1).gather(-1, targets[..., None]).mean()


def f1(outputs, targets):
    said, there = (outputs > 0).double(), targets.double()
    return 2 * (said * there).sum(dim=0), (said + there).sum(dim=0)


def right_tokens(outputs, targets):
    hits = (outputs.argmax(dim=-1) == targets[:, :-1]).double().sum(dim=1)
    group = targets[:, -1]
    return torch.stack([hits[group == g].sum() for g in (0, 1)]), torch.stack([(group == g).sum() * 4.0 for g in (0, 1)])


def within(outputs, targets):
    hits, middle = ((outputs[:, 0] - targets).abs() <= 0.8).double(), MIXED[TRAIN, 0].double().median()
    high = targets > middle
    return torch.stack([hits[~high].sum(), hits[high].sum()]), torch.stack([(~high).sum(), high.sum()]).double()


GROUPS = torch.arange(60)[:, None] % 2
# Objective, inputs, targets, net, loss of a batch, and (sums of scores, sums of weights) of each unit.
KINDS = {
    "labels": (MultiLabel(), INPUTS, (MIXED > 0).long(), lambda: nn.Linear(4, 3), bce, f1),
    "values": (
        Regression(bins=2, tolerance=0.8),
        INPUTS,
        MIXED[:, 0],
        lambda: nn.Linear(4, 1),
        lambda outputs, targets: (outputs[:, 0] - targets).square().mean(),
        within,
    ),
    "tokens": (
        NextToken(num_tokens=6, groups=["even", "odd"]),
        TEXTS[:, :-1],
        torch.cat([TEXTS[:, 1:], GROUPS], dim=1),
        Bigrams,
        lambda outputs, targets: tokens_loss(outputs, targets[:, :-1]),
        right_tokens,
    ),
}


def federation(kind):
    objective, inputs, targets, *_ = KINDS[kind]
    test = {"test_inputs": inputs[TEST], "test_targets": targets[TEST]}
    clients = [range(20), range(20, 40)]
    return from_arrays(
        inputs[TRAIN], targets[TRAIN], clients, objective=objective, batch_size=BATCH, val_fraction=0.25, monitor_test=1, **test
    )


def made(kind):
    torch.manual_seed(0)
    return KINDS[kind][3]()


def looped(kind):
    """Two rounds of FedAvg without the package's losses and scores: weights, scores by unit after each, and F_ki of round 2."""
    _, inputs, targets, _, loss_of, sums = KINDS[kind]
    net, data = made(kind), federation(kind)
    data.setup()

    def score(net, rows):
        with torch.no_grad():
            hits, weights = sums(net(inputs[rows]), targets[rows])
        return hits.sum() / weights.sum(), hits / weights

    history, validation = [], [data.shards.validation_indices(client) for client in (0, 1)]
    for round in (1, 2):
        fits, before = [], [score(net, rows)[0] for rows in validation]
        for client in (0, 1):
            copied = copy.deepcopy(net)
            for batch in data.client_batches().batches(client, round, STEPS):
                loss = loss_of(copied(batch.inputs), batch.targets)
                for weight, gradient in zip(copied.parameters(), torch.autograd.grad(loss, [*copied.parameters()])):
                    weight.data -= RATE * gradient
            fits.append(copied)
        forgetting = [score(fits[i], validation[k])[0] - before[k] for i, k in ((0, 1), (1, 0))]
        states = [fit.state_dict() for fit in fits]
        net.load_state_dict({name: (states[0][name] + states[1][name]) / 2 for name in states[0]})
        history.append(score(net, TEST))
    return net.state_dict(), history, forgetting


@pytest.mark.parametrize("engine", ["sequential", "vectorized", pytest.param("captured", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_as_in_a_plain_loop(kind, engine, fit):
    """Weights, test score, scores by unit, F_ki and F_t."""
    watched = [ClientForgetting(every=1), RoundForgetting(every=1), PerClassAccuracy(every=0)]
    method = FedAvg(made(kind), engine=engine, local_steps=STEPS, optimizer=lambda p: torch.optim.SGD(p, lr=RATE))
    data = federation(kind)
    fit(method, data, 2, callbacks=watched)
    weights, history, forgetting = looped(kind)
    for name, weight in method.net.state_dict().items():
        torch.testing.assert_close(weight, weights[name], rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    score, by_unit = history[-1]
    assert method.newest["test/accuracy"] == pytest.approx(float(score), abs=1e-9)
    for unit, expected in zip(data.classes, by_unit.tolist(), strict=True):
        assert method.newest[f"class_accuracy/{unit}"] == pytest.approx(expected, abs=1e-9)
    assert method.newest["forgetting/client_mean"] == pytest.approx(float(sum(forgetting) / 2), abs=1e-9)
    assert method.newest["forgetting/client_worst"] == pytest.approx(float(min(forgetting)), abs=1e-9)
    drops = (history[0][1] - by_unit).clamp_min(0).mean()
    assert method.newest["forgetting/round"] == pytest.approx(float(drops), abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_dp_sgd_without_noise_and_limit_is_none(kind, fit):
    """The net's outputs may have any shape."""
    methods = [
        FedAvg(made(kind), engine="sequential", privacy=privacy) for privacy in (None, DPSGD(1e-15, clipping_norm=1000.0))
    ]
    for method in methods:
        fit(method, federation(kind), 1)
    plain, private = (method.net.state_dict() for method in methods)
    torch.testing.assert_close(private, plain, rtol=1e-4, atol=1e-5)


class Strict(Bigrams):
    """Takes no empty batch, as nets of transformers."""

    def forward(self, tokens):
        assert len(tokens) > 0
        return super().forward(tokens)


def test_personal_models_of_tokens_in_two_processes(fit):
    """Of three test samples client 0 gets none; what is logged is as in one process."""
    logged, (objective, inputs, targets, *_) = [], KINDS["tokens"]
    for trainer in ({}, {"strategy": FederatedStrategy(start_method="fork"), "devices": 2}):
        torch.manual_seed(0)
        method = FedPer(Strict(), engine="sequential")
        clients = [range(4), range(4, 20), range(20, 40)]
        settings = {"test_inputs": inputs[:3], "test_targets": targets[:3], "val_fraction": 0.25, "monitor_test": 1}
        data = from_arrays(inputs, targets, clients, objective=objective, **settings)
        after = fit(method, data, 2, callbacks=[PersonalAccuracy(every=1), RoundForgetting(every=1)], **trainer)
        logged.append(dict(after.callback_metrics))
    torch.testing.assert_close(logged[1], logged[0], rtol=0, atol=1e-6)
