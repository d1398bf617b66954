"""The correlations of Fisher information against their definition in plain loops over samples."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fl_lightning import FedAvg, FedReg
from fl_lightning.callbacks import FederatedCallback, PseudoDataFisher

COHORTS = [[0, 2], [1], [0, 1], [0, 1, 2]]  # clients of 5, 10 and 15 samples
NAMES = ("forgetting/fisher_correlation", "forgetting/fisher_correlation_local")
GAMMA, STEP, NUM_STEPS, RATE = 0.4, 0.15, 3, 0.1


def new_net():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


class Watch(FederatedCallback):
    """Keeps the correlations and the global model that each round starts from."""

    def __init__(self):
        super().__init__()
        self.rounds, self.nets = {}, {}

    def on_round_start(self, trainer, module, round):
        self.nets[round] = copy.deepcopy(module.net)

    def on_round_end(self, trainer, module, round, report):
        if NAMES[0] in module.newest:
            self.rounds[round] = [module.newest.pop(name) for name in NAMES]


@pytest.fixture
def watched(fit, toy_data):
    """Rounds of FedReg with the callbacks; gives what a :class:`Watch` kept, the method and the trainer."""

    def run(*callbacks, rounds=4, ckpt_path=None, engine="sequential", **settings):
        data, watch = toy_data(**{"cohorts": COHORTS, "batch_size": 4, **settings}), Watch()
        method = FedReg(
            new_net(), gamma=GAMMA, pseudo_step=STEP, num_perturbations=NUM_STEPS, local_epochs=2, engine=engine, seed=5
        )
        trainer = fit(method, data, rounds, ckpt_path, precision="64-true", callbacks=[*callbacks, watch])
        return watch, method, trainer

    return run


def climb(net, inputs, targets, length):
    """``x <- x + length * sign(gradient of the loss)``, some times."""
    for _ in range(NUM_STEPS):
        inputs = inputs.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(net(inputs), targets), inputs)
        inputs = inputs.detach() + length * gradient.sign()
    return inputs


def gradient_of(net, vector, inputs, targets):
    """Of the mean cross entropy, for targets of either kind, with these weights in a copy of the net, as one vector."""
    net = copy.deepcopy(net)
    nn.utils.vector_to_parameters(vector, net.parameters())
    loss = F.cross_entropy(net(inputs), targets)
    return nn.utils.parameters_to_vector(torch.autograd.grad(loss, list(net.parameters())))


def one_local_step(net, data, client, round):
    """FedReg's five steps on the first batch, and all pseudo data with their soft labels."""
    rows = []
    for batch in data.client_batches().epoch(client, round, "pseudo data"):
        inputs, targets = batch.inputs[batch.real], batch.targets[batch.real]
        pseudo = climb(net, inputs, targets, STEP)
        rows.append((pseudo, net(pseudo).detach().softmax(dim=1), climb(net, inputs, targets, STEP / 100), targets))
    pseudo, soft, perturbed, hard = rows[0]
    batch = next(data.client_batches().batches(client, round, 1))
    t0 = nn.utils.parameters_to_vector(net.parameters()).detach()
    t = t0 - RATE * gradient_of(net, t0, batch.inputs, batch.targets)
    g_s, g_p = gradient_of(net, (t + t0) / 2, pseudo, soft), gradient_of(net, (t + t0) / 2, perturbed, hard)
    w_s = max(0.0, float((t - t0) @ g_s / (g_s @ g_s)))
    w_p = max(0.0, float((t - t0 - w_s * g_s) @ g_p / (g_p @ g_p)))
    return t - w_s * g_s - w_p * g_p, torch.cat([row[0] for row in rows]), torch.cat([row[1] for row in rows])


def fisher(net, vector, inputs, targets):
    """Mean over single samples of the squared gradient, one value a weight."""
    squares = [gradient_of(net, vector, inputs[i : i + 1], targets[i : i + 1]) ** 2 for i in range(len(inputs))]
    return torch.stack(squares).mean(dim=0).numpy()


def plain_correlations(net, data, round, cohort, history=10):
    """Means over the cohort of Pearson's correlations of earlier data with pseudo data and with training data."""

    def samples(*clients):
        indices = torch.cat([data.shards.train_indices(client) for client in clients])
        return data.train_set.inputs[indices], data.train_set.targets[indices]

    earlier = {client for cohort in COHORTS[max(round - 1 - history, 0) : round - 1] for client in cohort}
    rows = []
    for client in cohort:
        weights, pseudo, soft = one_local_step(net, data, client, round)
        previous = fisher(net, weights, *samples(*earlier))
        others = fisher(net, weights, pseudo, soft), fisher(net, weights, *samples(client))
        rows.append([np.corrcoef(previous, other)[0, 1] for other in others])
    return np.mean(rows, axis=0)


@pytest.fixture
def data(toy_data):
    built = toy_data(cohorts=COHORTS, batch_size=4)
    built.setup()
    built.to(torch.device("cpu"), torch.float64)
    return built


@pytest.mark.parametrize(("history", "engine"), [(1, "vectorized"), (10, "sequential")])
def test_equals_plain_loops(watched, data, engine, history):
    """Every round but the first; with a history of 1 the last cohort alone counts, which in rounds 3 and 4 is not everyone."""
    watch, _, _ = watched(PseudoDataFisher(every=1, history=history), engine=engine)
    assert list(watch.rounds) == [2, 3, 4]
    for round, values in watch.rounds.items():
        expected = plain_correlations(watch.nets[round], data, round, COHORTS[round - 1], history)
        assert values == pytest.approx(expected, abs=1e-9), round


def test_pseudo_data_are_not_training_data(watched):
    """The two correlations differ: a mix-up of the two would show."""
    watch, _, _ = watched(PseudoDataFisher(every=1))
    assert all(abs(values[0] - values[1]) > 1e-3 for values in watch.rounds.values())


def test_some_clients_drawn_by_the_seed(watched, data):
    """One of round 4's three, whose value depends on it alone: the same in every run; the global generator is left alone."""
    held = torch.get_rng_state()
    (one, _, _), (other, _, _) = (watched(PseudoDataFisher(rounds=[4], clients=1)) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), held)
    values, net = [one.rounds[4], other.rounds[4]], one.nets[4]
    assert values[0] == values[1]
    each = [plain_correlations(net, data, 4, [client]) for client in COHORTS[3]]
    assert sum(values[0] == pytest.approx(expected, abs=1e-9) for expected in each) == 1


@pytest.mark.parametrize("cut", [1, 3])
@pytest.mark.parametrize("history", [2, 10])
@pytest.mark.one_in(2)
def test_a_resumed_run_logs_the_same(watched, tmp_path, cut, history):
    """The clients of the rounds before the cut are known after it."""
    whole, _, _ = watched(PseudoDataFisher(every=1, history=history))
    first, _, trainer = watched(PseudoDataFisher(every=1, history=history), rounds=cut)
    trainer.save_checkpoint(tmp_path / "cut.ckpt")
    rest, _, _ = watched(PseudoDataFisher(every=1, history=history), ckpt_path=tmp_path / "cut.ckpt")
    assert {**first.rounds, **rest.rounds} == whole.rounds
    assert next(iter(rest.rounds)) == cut + 1


def test_it_changes_nothing(watched):
    """The same weights, bit for bit, with and without it."""
    plain, seen = watched()[1], watched(PseudoDataFisher(every=1))[1]
    assert all(torch.equal(value, seen.state_dict()[name]) for name, value in plain.state_dict().items())


def test_it_looks_at_the_cohort_of_the_round(fit, toy_data):
    """As it was chosen: the method is asked for each cohort once."""

    class Counted(FedReg):
        asked: list[int] = []

        def cohort(self, round):
            self.asked.append(round)
            return super().cohort(round)

    method = Counted(new_net(), local_epochs=2)
    fit(method, toy_data(cohorts=COHORTS, batch_size=4), 3, callbacks=[PseudoDataFisher(every=1)], precision="64-true")
    assert [round for round in method.asked if round > 1] == [2, 3]


def test_streamed_samples_give_the_same(watched):
    expected, actual = (
        watched(PseudoDataFisher(every=2), **settings)[0].rounds
        for settings in ({}, {"storage": "stream", "num_workers": 0, "eval_batch_size": 3})
    )
    assert list(actual) == [2, 4]
    for round, values in expected.items():
        assert actual[round] == pytest.approx(values, abs=1e-12)


def test_other_methods_are_refused(fit, toy_data):
    """Before round 1, in one line."""
    message = (
        "^trainer.callbacks has PseudoDataFisher, model is FedAvg, but only FedReg makes pseudo data: leave the callback out$"
    )
    with pytest.raises(ValueError, match=message):
        fit(FedAvg(new_net()), toy_data(), 1, precision="64-true", callbacks=[PseudoDataFisher()])


@pytest.mark.parametrize("name", ["history", "clients"])
def test_wrong_values_are_refused(name):
    with pytest.raises(ValueError, match=f"^trainer.callbacks.{name} is -1"):
        PseudoDataFisher(**{name: -1})
