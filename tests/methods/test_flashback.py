"""Flashback against its equations in a plain loop."""

import copy

import pytest
import torch
from declared_by_tests import Cost

from fl_lightning import FedAvg
from fl_lightning.functional.random_streams import seeded_layers
from fl_lightning.methods import Flashback

NEEDS = ({"public_size": 12}, {})
COSTS = {"Flashback": Cost(down=(1, 0, 4 * 4), server=(0, 0, 4 * 4 + 8 * 5), first_up=4 * 4)}  # four classes, five clients

PUBLIC = 12
DECAY = 0.9  # of the tiny federation


def divergence(student, teachers, alpha):
    """``sum_i sum_c alpha_i^c p_i^c log(p_i^c / q^c)``, the mean over samples; teachers are lists of logits (B, C)."""
    q, total = student.softmax(dim=1), 0.0
    for teacher, weights in zip(teachers, alpha):
        p = teacher.softmax(dim=1)
        for c, weight in enumerate(weights):
            total = total + weight * p[:, c] * (p[:, c].log() - q[:, c].log())
    return total.mean()


def weights_of(student_counts, teacher_counts):
    """``mu_i^c / (nu^c + sum_j mu_j^c)``, nothing where nobody has the class."""
    alpha = []
    for counts in teacher_counts:
        row = []
        for c, count in enumerate(counts):
            total = student_counts[c] + sum(others[c] for others in teacher_counts)
            row.append(count / total if total > 0 else 0.0)
        alpha.append(row)
    return alpha


def counts_of(tiny, data, client):
    _, targets = shard(data, client)
    return [float((targets == c).sum()) for c in range(4)]


def shard(data, client):
    indices = data.shards.train_indices(client)
    return data.train_set.inputs[indices], data.train_set.targets[indices]


@pytest.mark.parametrize("tiny", ["sgd", "momentum"], indirect=True)
@pytest.mark.parametrize(("gamma", "schedule"), [(0.4, "decayed"), (1.0, "decayed"), (0.4, "scheduled"), (0.4, "constant")])
def test_rounds_equal_the_equations(tiny, gamma, schedule, monkeypatch):
    """Three rounds: local steps towards the received model, a pass over public samples towards all models of the round.

    With gamma 0.4 client 1 is counted twice of three visits, since 3 x 0.4 is more than all of it. The clients' rate decays by
    ``DECAY`` a round, and so does the server's, unless it is constant; a schedule halves both once more.
    """
    data = tiny.new_data(public_size=PUBLIC)
    settings = {"gamma": gamma, "distillation_batch_size": 5, "distillation_epochs": 2}
    if schedule == "constant":  # the other is the default
        settings["distillation_schedule"] = schedule
    if schedule == "scheduled":
        settings["client_lr_scheduler"] = lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        monkeypatch.setattr(tiny, "rate", lambda round, rate=tiny.rate: rate(round) * 0.5 ** (round - 1))
    method = tiny.train(Flashback, data, **settings)
    tiny.data, net = data, tiny.new_net()
    samples = torch.cat(list(data.public.inputs().split(100))), data.samples.targets("train", data.public.indices)
    pi, visits = [0.0] * 4, {}
    for round, cohort in tiny.rounds:

        def objective(local, received, client, inputs, targets, pi=pi):
            logits, teacher = local(inputs), copy.deepcopy(received).eval()(inputs).detach()
            alpha = weights_of(counts_of(tiny, data, client), [pi])
            return tiny.losses(logits, targets, client).mean() + divergence(logits, [teacher], alpha)

        before = copy.deepcopy(net).eval()
        locals = {client: tiny.visit(net, client, round, objective) for client in cohort}
        net.load_state_dict(tiny.mean(locals))
        with torch.no_grad():
            teachers = [copy.deepcopy(model).eval()(samples[0]) for model in locals.values()] + [before(samples[0])]
        alpha = weights_of(pi, [*(counts_of(tiny, data, client) for client in cohort), pi])
        if round == 1:
            assert alpha[-1] == [0.0] * 4  # the untrained model teaches nothing
        factor = {"decayed": DECAY, "scheduled": 0.5 * DECAY, "constant": 1.0}[schedule]
        distil(net, samples, teachers, alpha, round, 0.01 * factor ** (round - 1))
        for client in cohort:
            visits[client] = visits.get(client, 0) + 1
            if gamma * visits[client] <= 1:
                pi = [old + gamma * count for old, count in zip(pi, counts_of(tiny, data, client))]
    tiny.assert_same(method.net, net)
    torch.testing.assert_close(method.global_label_counts, torch.tensor(pi, dtype=torch.float64), atol=1e-12, rtol=0)
    assert method.visits.tolist() == [2, 3, 1, 1, 0]


def distil(net, samples, teachers, alpha, round, rate):
    """Two passes over the public samples in the order that the server draws, by SGD with momentum."""
    inputs, targets = samples
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    with seeded_layers(0, round, -1, "server", torch.device("cpu")):
        orders = [torch.randperm(PUBLIC).split(5) for _ in range(2)]
    for where in (part for order in orders for part in order):
        logits = net(inputs[where])
        loss = (logits.logsumexp(dim=1) - logits[torch.arange(len(where)), targets[where]]).mean()
        loss = loss + divergence(logits, [teacher[where] for teacher in teachers], alpha)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_the_first_round_at_the_clients_is_fedavgs(tiny):
    """No counts are credited yet, hence no distillation: before the server distils, the mean is FedAvg's."""

    class Undistilled(Flashback):
        def after_server_step(self, probes):
            pass

    actual = tiny.train(Undistilled, tiny.new_data(public_size=PUBLIC), rounds=1)
    expected = tiny.train(FedAvg, tiny.new_data(public_size=PUBLIC), rounds=1)
    tiny.assert_same(actual.net, expected.net, atol=1e-14)


def test_public_samples_are_nobodys(tiny):
    """No client and no test set has them, and what clients hold together with them is the training set."""
    data = tiny.new_data(public_size=PUBLIC)
    data.setup()
    held = torch.cat([data.shards.train, data.public.indices])
    assert sorted(held.tolist()) == list(range(len(data.train_set)))
    assert len(data.public.indices) == PUBLIC


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 0.0}, "model.gamma is 0.0, must be above 0 and at most 1"),
        ({"gamma": 1.1}, "model.gamma is 1.1, must be above 0 and at most 1"),
        ({"distillation_epochs": 0}, "model.distillation_epochs is 0, must be at least 1"),
        ({"distillation_schedule": "fast"}, "model.distillation_schedule is 'fast', must be one of decayed, constant"),
        ({"distillation_batch_size": 0}, "model.distillation_batch_size is 0, must be at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(tiny, settings, message):
    with pytest.raises(ValueError) as error:
        Flashback(tiny.new_net(), **settings)
    assert str(error.value) == message


def test_public_samples_are_asked_for(tiny):
    with pytest.raises(ValueError, match="data.public_size is 0, but Flashback distils on public samples"):
        tiny.train(Flashback)
