"""FedReg against its five steps in a plain loop over weights as one vector."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LinearLR
from torchvision.ops import StochasticDepth

from fl_lightning import FedAvg
from fl_lightning.functional.random_streams import stream_seed
from fl_lightning.methods import FedReg, fedreg
from fl_lightning.privacy import DPSGD

NEEDS = ({}, {"norm": False})

GAMMA, STEP, NUM_STEPS = 0.4, 0.15, 3


def log_probabilities(logits):
    """The specification's ``log(softmax + 1e-12)``."""
    return (logits.softmax(dim=1) + 1e-12).log()


def hard_losses(tiny, logits, targets, client):
    """The specification's cross entropy, or TCE as it is; one value a sample."""
    if tiny.truncated:
        return tiny.losses(logits, targets, client)
    return -log_probabilities(logits)[torch.arange(len(targets)), targets]


def climb(tiny, net, client, inputs, targets, length):
    """``x <- x + length * sign(gradient of the mean loss)``, some times."""
    for _ in range(NUM_STEPS):
        inputs = inputs.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(hard_losses(tiny, net(inputs), targets, client).mean(), inputs)
        inputs = inputs.detach() + length * gradient.sign()
    return inputs


def rehearsal(tiny, net, client, round):
    """Pseudo inputs, what the received net says of them, perturbed inputs and their labels, batch by batch."""
    rows = []
    for batch in tiny.data.client_batches().epoch(client, round, "pseudo data"):
        inputs, targets = batch.inputs[batch.real], batch.targets[batch.real]
        pseudo = climb(tiny, net, client, inputs, targets, STEP)
        perturbed = climb(tiny, net, client, inputs, targets, STEP / 100)
        rows.append((pseudo, net(pseudo).detach().softmax(dim=1), perturbed, targets))
    return rows


def gradient_at(net, vector, loss):
    """Of ``loss(net)`` with these weights in a copy of the net, as one vector."""
    net = copy.deepcopy(net)
    nn.utils.vector_to_parameters(vector, net.parameters())
    return nn.utils.parameters_to_vector(torch.autograd.grad(loss(net), list(net.parameters())))


def loss_gradient(tiny, net, slow, client, round, step, inputs, targets):
    """Of the mean loss, at the slow weights."""
    return gradient_at(net, slow, lambda net: hard_losses(tiny, net(inputs), targets, client).mean())


def semantic_gradient(tiny, net, slow, client, inputs, targets):
    """Of the mean cross entropy with labels of 1 / 4 each, on pseudo data made of this very batch at the received weights."""
    pseudo = climb(tiny, copy.deepcopy(net).eval(), client, inputs, targets, STEP)
    return gradient_at(net, slow, lambda net: -log_probabilities(net(pseudo)).mul(0.25).sum(dim=1).mean())


def modified_gradient(tiny, net, slow, client, round, step, inputs, targets):
    """MG: ``g - (<g, u> / ||u||^2) u``."""
    g = loss_gradient(tiny, net, slow, client, round, step, inputs, targets)
    u = semantic_gradient(tiny, net, slow, client, inputs, targets)
    return g - (g @ u) / (u @ u) * u


def private_gradient(tiny, net, slow, client, round, step, inputs, targets):
    """DP-SGD with sigma 0.3 and C 1.4, at the slow weights: ``(sum_i g_i min(1, C / (||g_i|| + 1e-6)) + sigma C z) / B``."""
    total = torch.zeros_like(slow)
    for i in range(len(targets)):
        g = loss_gradient(tiny, net, slow, client, round, step, inputs[i : i + 1], targets[i : i + 1])
        total += g * min(1.0, 1.4 / (float(g.norm()) + 1e-6))
    noise = torch.Generator().manual_seed(stream_seed(0, round, client, f"noise of step {step}"))
    draws = [torch.randn(w.shape, generator=noise, dtype=torch.float64).flatten() for w in net.parameters()]
    return (total + 0.3 * 1.4 * torch.cat(draws)) / len(targets)


def plain_visit(tiny, net, client, round, first_gradient=loss_gradient):
    """Steps 1 to 5 on each batch, the rehearsed batches taken in turn; returns the net and how often each projection held."""
    t0 = nn.utils.parameters_to_vector(net.parameters()).detach()
    t, rows, active = t0.clone(), rehearsal(tiny, copy.deepcopy(net).eval(), client, round), torch.zeros(2)
    for step, (inputs, targets) in enumerate(tiny.batches(client, round)):
        pseudo, soft, perturbed, hard = rows[step % len(rows)]
        g_1 = first_gradient(tiny, net, GAMMA * t + (1 - GAMMA) * t0, client, round, step, inputs, targets)
        t = t - tiny.rate(round) * g_1
        t_b = (t + t0) / 2
        g_s = gradient_at(
            net,
            t_b,
            lambda net, pseudo=pseudo, soft=soft: -(soft * log_probabilities(net(pseudo))).sum(dim=1).mean(),
        )
        g_p = gradient_at(
            net,
            t_b,
            lambda net, perturbed=perturbed, hard=hard: hard_losses(tiny, net(perturbed), hard, client).mean(),
        )
        d = t - t0
        w_s = max(0.0, float(d @ g_s) / (float(g_s @ g_s) + 1e-30))
        w_p = max(0.0, float((d - w_s * g_s) @ g_p) / (float(g_p @ g_p) + 1e-30))
        t = t - w_s * g_s - w_p * g_p
        active += torch.tensor([w_s > 0, w_p > 0])
    local = copy.deepcopy(net)
    nn.utils.vector_to_parameters(t, local.parameters())
    return local, active


@pytest.mark.parametrize("weighting", ["uniform", "n_weighted"])
@pytest.mark.parametrize("tiny", ["sgd", "sgd tce"], indirect=True)
def test_rounds_equal_the_five_steps(tiny, weighting):
    """Three rounds, to 1e-9: pseudo data made once a visit at the received weights, all inner products over all weights."""
    settings = {"gamma": GAMMA, "pseudo_step": STEP, "num_perturbations": NUM_STEPS, "server_weighting": weighting}
    method, net, active = tiny.train(FedReg, norm=False, **settings), tiny.new_net(norm=False), torch.zeros(2)
    for round, cohort in tiny.rounds:
        fits = {client: plain_visit(tiny, net, client, round) for client in cohort}
        active += sum(fit[1] for fit in fits.values())
        net.load_state_dict(tiny.mean({client: fit[0] for client, fit in fits.items()}, uniform=weighting == "uniform"))
    tiny.assert_same(method.net, net)
    tiny.assert_moved(net)
    assert (active >= 3).all()


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("scale", [20, 60], ids=["sharp", "sharper"])
def test_saturated_pseudo_data(tiny, monkeypatch, scale, engine):
    """Two local steps where the softmax of the pseudo data is 1e-5 to 1e-20 for some class, to 1e-9.

    There the 1e-12 of the loss decides: a plain log-softmax ends .06 to 6.5 off.
    """

    class Sharp(FedReg):
        def configure_model(self):
            super().configure_model()
            self.net.classifier.weight.data.mul_(scale)

    monkeypatch.setattr(tiny, "num_steps", lambda client: 2)
    settings = {"gamma": GAMMA, "pseudo_step": STEP, "num_perturbations": NUM_STEPS}
    data = tiny.new_data(cohorts=[[1]])
    method, net = tiny.train(Sharp, data, norm=False, local_steps=2, engine=engine, **settings), tiny.new_net(norm=False)
    net.classifier.weight.data.mul_(scale)
    tiny.assert_same(method.net, plain_visit(tiny, net, 1, 1)[0])


def test_the_loss_does_not_underflow():
    """``log(softmax + 1e-12)`` of logits 0, 50 and 200 in float32 against float64: values, and gradients that are not 0."""
    logits = torch.tensor([[0.0, 50.0, 200.0], [0.0, 20.0, 30.0]])
    exact = logits.double().requires_grad_()
    logits.requires_grad_()
    (expected,) = torch.autograd.grad(log_probabilities(exact)[:, 0].sum(), exact)
    actual = fedreg._log_probabilities(logits)
    torch.testing.assert_close(actual, log_probabilities(exact).float(), rtol=1e-6, atol=1e-6)
    (gradient,) = torch.autograd.grad(actual[:, 0].sum(), logits)
    torch.testing.assert_close(gradient[1], expected[1].float(), rtol=1e-4, atol=0)
    half = fedreg._log_probabilities(logits.detach().bfloat16())
    assert half.dtype == torch.float32
    assert half.isfinite().all()


@pytest.mark.parametrize(
    ("tied", "engine"),
    [
        ("names", "sequential"),
        ("layers", "sequential"),
        ("outside", "sequential"),
        ("outside", "vectorized"),
        pytest.param("layers", "captured", marks=pytest.mark.slow),
    ],
    indirect=["tied"],
)
def test_weights_that_count_twice(tied, engine):
    """To 1e-9, and the net is left with parameters, not with the tensors that it held in between."""
    cohorts = [[0, 1], [1]] if engine != "captured" else [[1]]  # each number of steps is traced anew
    settings = {"gamma": GAMMA, "pseudo_step": STEP, "num_perturbations": NUM_STEPS, "modified_gradients": True}
    method, net = tied.train(FedReg, tied.new_data(cohorts=cohorts), engine=engine, **settings), tied.new_net()
    for round, cohort in enumerate(cohorts, start=1):
        fits = {client: plain_visit(tied, net, client, round, modified_gradient)[0] for client in cohort}
        net.load_state_dict(tied.mean(fits, uniform=True))
    tied.assert_same(method.net, net)
    assert all(isinstance(weight, nn.Parameter) for weight in method.engine.net.parameters())


def assert_modified_rounds(tiny, data, engine):
    """Against :func:`modified_gradient`, to 1e-9."""
    settings = {"gamma": GAMMA, "pseudo_step": STEP, "num_perturbations": NUM_STEPS, "modified_gradients": True}
    method, net = tiny.train(FedReg, data, norm=False, engine=engine, **settings), tiny.new_net(norm=False)
    for round, cohort in enumerate(data.cohorts, start=1):
        fits = {client: plain_visit(tiny, net, client, round, modified_gradient)[0] for client in cohort}
        net.load_state_dict(tiny.mean(fits, uniform=True))
    tiny.assert_same(method.net, net)
    tiny.assert_moved(net)


@pytest.mark.parametrize("tiny", ["sgd", "sgd tce"], indirect=True)
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_modified_gradients_equal_the_equation(tiny, engine):
    """Three rounds, short batches among them, though ours looks a batch's pseudo data up by its samples' indices."""
    assert_modified_rounds(tiny, tiny.new_data(), engine)


def test_modified_gradients_in_captured_steps(tiny):
    """Two rounds of the client with 10 samples, whose third batch is filled up."""
    assert_modified_rounds(tiny, tiny.new_data(cohorts=[[1], [1]]), "captured")


def test_modified_gradients_are_orthogonal_to_the_semantic_direction(tiny):
    """|<g', u>| is at most 1e-12 of ``||g|| ||u||`` in every local step, where that of g itself is far from 0."""
    steps = []

    class Watched(FedReg):
        def _without_semantics(self, gradient, net, batch, client, slow):
            modified = super()._without_semantics(gradient, net, batch, client, slow)
            received, vector = copy.deepcopy(self.net), nn.utils.parameters_to_vector
            u = semantic_gradient(tiny, received, vector(slow), client.index, batch.inputs, batch.targets)
            u = u / u.norm()
            steps.append([float((vector(part) @ u).abs() / vector(gradient).norm()) for part in (gradient, modified)])
            return modified

    tiny.train(Watched, norm=False, pseudo_step=STEP, num_perturbations=NUM_STEPS, modified_gradients=True)
    before, after = torch.tensor(steps, dtype=torch.float64).unbind(dim=1)
    assert len(steps) >= sum(tiny.num_steps(client) for _, cohort in tiny.rounds for client in cohort)
    assert after.max() <= 1e-12
    assert before.median() > 0.01


def test_a_semantic_direction_of_nothing_takes_out_nothing_more(tiny):
    """A class layer of zeros says the same of all classes, so that u is 0 but for rounding: no NaN, no longer gradient."""
    lengths = []

    class Blank(FedReg):
        def configure_model(self):
            nn.init.zeros_(self.net.classifier.weight)
            nn.init.zeros_(self.net.classifier.bias)
            super().configure_model()

        def _without_semantics(self, gradient, net, batch, client, slow):
            modified = super()._without_semantics(gradient, net, batch, client, slow)
            lengths.append([float(nn.utils.parameters_to_vector(part).norm()) for part in (gradient, modified)])
            return modified

    method = tiny.train(Blank, tiny.new_data(cohorts=[[1]]), norm=False, modified_gradients=True)
    assert all(after <= before * (1 + 1e-12) for before, after in lengths)
    assert all(weight.abs().max() > 1e-3 for weight in method.net.classifier.parameters())


def test_modified_gradients_under_dp_sgd(tiny):
    """MG is taken of the noisy gradient: with C = 1000 and noise of 1e-12, three rounds as without, to 1e-9."""
    settings = {"norm": False, "pseudo_step": STEP, "num_perturbations": NUM_STEPS, "modified_gradients": True}
    actual = tiny.train(FedReg, privacy=DPSGD(1e-15, clipping_norm=1000.0), **settings)
    tiny.assert_same(actual.net, tiny.train(FedReg, **settings).net)
    noisy = tiny.train(FedReg, privacy=DPSGD(0.3, accounting=True), data=tiny.new_data(batch_size=1), **settings)
    assert [report.nonfinite for report in noisy.reports] == [[], [], []]


def test_dp_sgd_at_the_slow_weights(tiny):
    """Three rounds, to 1e-9: step 1 takes DP-SGD's gradient, the projections those that they always took."""
    settings = {"gamma": GAMMA, "pseudo_step": STEP, "num_perturbations": NUM_STEPS, "privacy": DPSGD(0.3, 1.4)}
    method, net = tiny.train(FedReg, norm=False, **settings), tiny.new_net(norm=False)
    for round, cohort in tiny.rounds:
        fits = {client: plain_visit(tiny, net, client, round, private_gradient)[0] for client in cohort}
        net.load_state_dict(tiny.mean(fits, uniform=True))
    tiny.assert_same(method.net, net)


def test_sample_indices_are_asked_for_where_they_are_used(tiny):
    """Without MG batches bear none and a visit carries what it always did."""

    class Watches(Keeps):
        def client_loss(self, net, batch, client):
            self.have_indices = batch.sample_indices is not None
            return super().client_loss(net, batch, client)

    methods = [tiny.train(Watches, norm=False, rounds=1, modified_gradients=modified) for modified in (True, False)]
    assert [method.have_indices for method in methods] == [True, False]
    with_indices, without = (method.kept[3] for method in methods)
    assert with_indices.keys() - without.keys() == {"found_at"}
    assert without.keys() == {"pseudo", "labels", "perturbed", "targets", "real"}


class Keeps(FedReg):
    """Keeps the pseudo data of a visit, and what they were at its end."""

    def client_start(self, net, client):
        carry = super().client_start(net, client)
        rows = carry["rehearsal"]
        self.kept = (copy.deepcopy(net).eval(), client.index, client.round, {k: v.clone() for k, v in rows.items()}, rows)
        return carry


def test_pseudo_data_lie_uphill_and_stay(tiny):
    """The received model's loss rises to perturbed and to pseudo data, which move by the step at most; then nothing changes.

    An input that the net does not look at has a gradient of 0, whose sign is 0: it stays where it is.
    """

    class Blind(Keeps):
        def configure_model(self):
            super().configure_model()
            self.net.features[0].weight.data[:, 2] = 0.0

    method = tiny.train(Blind, tiny.new_data(cohorts=[[1]]), norm=False, pseudo_step=STEP, num_perturbations=NUM_STEPS)
    net, client, round, made, at_the_end = method.kept
    assert all(torch.equal(value, at_the_end[name]) for name, value in made.items())
    assert not torch.equal(net.classifier.weight, method.net.classifier.weight)
    batches = list(tiny.data.client_batches().epoch(client, round, "pseudo data"))
    assert len(batches) == len(made["pseudo"]) == 3
    for row, batch in enumerate(batches):
        for name, length in (("perturbed", STEP / 100), ("pseudo", STEP)):
            moved = (made[name][row] - batch.inputs).abs()
            assert moved.max() <= NUM_STEPS * length + 1e-12
            assert (moved[:, :2] > 0).any()
            assert (moved[:, 2] == 0).all()
            before, after = (tiny.losses(net(inputs), batch.targets, client) for inputs in (batch.inputs, made[name][row]))
            assert (after > before).all()
        soft = made["labels"][row]
        torch.testing.assert_close(soft, net(made["pseudo"][row]).softmax(dim=1).detach())
        assert ((soft > 0.01).sum(dim=1) > 1).all()  # labels of more than one class each


def test_a_visit_makes_only_what_it_rehearses(tiny, monkeypatch):
    """Two of three rows in two steps, with the same bits."""
    settings = {"norm": False, "local_steps": 2, "pseudo_step": STEP}
    short = tiny.train(Keeps, tiny.new_data(cohorts=[[1]]), **settings)
    assert len(short.kept[3]["pseudo"]) == 2
    monkeypatch.setattr(fedreg, "islice", lambda batches, _: batches)
    long = tiny.train(Keeps, tiny.new_data(cohorts=[[1]]), **settings)
    assert len(long.kept[3]["pseudo"]) == 3
    tiny.assert_same(short.net, long.net, atol=0)


@pytest.mark.parametrize(("tiny", "atol"), [("sgd tce", 0.0), ("sgd", 1e-10)], indirect=["tiny"])
def test_without_projections_and_pull_it_is_fedavg(tiny, monkeypatch, atol):
    """gamma = 1 and multipliers of 0: bit for bit, or but for the 1e-12 in the logarithm of the cross entropy."""
    monkeypatch.setattr(fedreg, "_multiplier", lambda delta, gradient, smallest=0.0: torch.zeros((), dtype=torch.float64))
    actual = tiny.train(FedReg, norm=False, gamma=1.0).net
    tiny.assert_same(actual, tiny.train(FedAvg, norm=False, server_weighting="uniform").net, atol=atol)


def test_the_multiplier_by_hand():
    """Delta (3, 4 | 1), gradient (1, 1 | 2): 9 / 6 over both weights together; against the gradient 0; a gradient of 0: 0."""
    delta, gradient = [torch.tensor([3.0, 4.0]), torch.tensor([1.0])], [torch.tensor([1.0, 1.0]), torch.tensor([2.0])]
    assert fedreg._multiplier(delta, gradient).item() == 1.5
    assert fedreg._multiplier(delta, [-part for part in gradient]).item() == 0.0
    assert fedreg._multiplier(delta, [torch.zeros(2), torch.zeros(1)]).item() == 0.0


def test_the_multiplier_adds_up_in_float64():
    """1e8 times 1e8 and 1 in float32: the 1 is not lost, though float32 cannot hold it next to 1e16."""
    delta, gradient = [torch.tensor([1e8, -1e8, 1.0])], [torch.tensor([1e8, 1e8, 1.0])]
    assert fedreg._multiplier(delta, gradient).item() == pytest.approx(1 / 2e16)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 1.5}, "model.gamma is 1.5, must be between 0 and 1: the paper uses 0.25 to 0.5"),
        ({"gamma": -0.5}, "model.gamma is -0.5, must be between 0 and 1: the paper uses 0.25 to 0.5"),
        ({"pseudo_step": 0.0}, "model.pseudo_step is 0.0, must be above 0"),
        ({"perturbed_step": -1.0}, "model.perturbed_step is -1.0, must be above 0"),
        ({"num_perturbations": 0}, "model.num_perturbations is 0, must be above 0"),
        ({"optimizer": lambda w: torch.optim.Adam(w)}, "model.optimizer is Adam with its settings"),
        ({"optimizer": lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9)}, "model.optimizer is SGD with its settings"),
        ({"optimizer": lambda w: torch.optim.SGD(w, lr=0.1, weight_decay=0.1)}, "model.optimizer is SGD with its settings"),
        ({"clip_local_gradients": 1.0}, "model.optimizer is SGD with its settings"),
        (
            {"visit_lr_scheduler": lambda one: LinearLR(one, start_factor=0.2)},
            "model.visit_lr_scheduler is given, but FedReg projects steps of one rate: leave it out, or use",
        ),
    ],
)
def test_settings_out_of_range_are_refused(tiny, settings, message):
    """One line with the key and the value."""
    with pytest.raises(ValueError) as error:
        FedReg(tiny.new_net(norm=False), **settings)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("layer", "name"), [(nn.BatchNorm1d(4), "BatchNorm1d"), (nn.Dropout(0.5), "Dropout")])
def test_nets_that_mix_samples_or_draw_are_refused(tiny, layer, name):
    """Said before round 1, with the layer; dropout of nothing is fine."""

    def train(layer, training=True):
        class Wrapped(FedReg):
            def __init__(self, net, **common):
                super().__init__(nn.Sequential(net, layer).double().train(training), **common)

        return tiny.train(Wrapped, tiny.new_data(cohorts=[[1]]), norm=False)

    for training in (True, False):  # libraries give nets in evaluation mode
        with pytest.raises(ValueError, match=rf"^model.net has the layer 1, {name}, but FedReg needs a net with an output"):
            train(layer, training)
    with pytest.raises(ValueError, match="^model.net is Sequential: its outputs in training depend on chance"):
        train(StochasticDepth(0.5, "row"))
    train(nn.Dropout(0.0))


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_frozen_batch_norm_is_a_constant(tiny, engine):
    """With the statistics that it has, mean 0 and variance 1, it is a division."""

    class Divide(nn.Linear):  # which has weights to freeze, too
        def forward(self, inputs):
            return inputs / (1 + 1e-5) ** 0.5

    class Wrapped(FedReg):
        def __init__(self, net, first, **common):
            super().__init__(nn.Sequential(first, net).double(), trained=["1.*"], **common)

    found, expected = (
        tiny.train(Wrapped, norm=False, engine=engine, first=first).net[1] for first in (nn.BatchNorm1d(3), Divide(1, 1))
    )
    tiny.assert_moved(found)
    tiny.assert_same(found, expected)


@pytest.mark.parametrize("engine", ["sequential", "vectorized", "captured"])
def test_a_rate_of_0_moves_nothing(tiny, engine):
    """After round 2, of two clients at a rate of 0, the weights are those after round 1, bit for bit, and no client is lost."""
    schedule = {"client_lr_scheduler": lambda one: LambdaLR(one, lambda past: float(past == 0))}
    first, second = (tiny.train(FedReg, norm=False, rounds=rounds, engine=engine, **schedule) for rounds in (1, 2))
    assert second.reports[1].nonfinite == []
    tiny.assert_same(second.net, first.net, atol=0)
