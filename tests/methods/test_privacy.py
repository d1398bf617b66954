"""Methods under DP-SGD, against loops over single samples in float64 that draw the same noise."""

import copy
import itertools

import pytest
import torch
from torch import nn

from fl_lightning import FedAvg, methods
from fl_lightning.functional.aggregation import State
from fl_lightning.functional.random_streams import stream_seed
from fl_lightning.methods import MOON, SCAFFOLD, Ditto, FedCurv, FedDyn, FedProx, FedRoD
from fl_lightning.privacy import DPSGD
from fl_lightning.tasks import L2SP

SIGMA, CLIP = 0.3, 1.4
PRIVACY = DPSGD(SIGMA, CLIP)


class Clipped:
    """Gradients of DP-SGD, sample by sample; ``norms`` of all of them are kept."""

    def __init__(self, tiny):
        self.tiny, self.norms = tiny, []

    def gradients(self, net, client, round, step, inputs, targets, divisor) -> State:
        """``(sum_i g_i min(1, C / (||g_i|| + 1e-6)) + sigma C z) / B``, z drawn weight after weight for this step alone."""
        weights = dict(net.named_parameters())
        total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        for i in range(len(targets)):
            loss = self.tiny.losses(net(inputs[i : i + 1]), targets[i : i + 1], client).sum()
            gradients = torch.autograd.grad(loss, list(weights.values()))
            norm = sum(gradient.square().sum() for gradient in gradients).sqrt()
            self.norms.append(float(norm))
            for name, gradient in zip(total, gradients):
                total[name] += gradient * min(1.0, CLIP / (float(norm) + 1e-6))
        noise = torch.Generator().manual_seed(stream_seed(0, round, client, f"noise of step {step}"))
        draws = {name: torch.randn(value.shape, generator=noise, dtype=torch.float64) for name, value in total.items()}
        return {name: (value + SIGMA * CLIP * draws[name]) / divisor for name, value in total.items()}

    def visit(self, net, client, round, pull=lambda name, weight: 0.0, num_steps=None, divisor=None) -> nn.Module:
        """A client's net after its local steps; ``pull`` is added to the noisy gradients, from a weight's name and value.

        Args:
            divisor: of Poisson batches; None: batches are those without privacy, divided by their sizes.
        """
        local = copy.deepcopy(net)
        optimizer = self.tiny.optimizer(local.parameters())
        optimizer.param_groups[0]["lr"] = self.tiny.rate(round)
        batches = self.tiny.data.client_batches(poisson=divisor is not None)
        for step, batch in enumerate(batches.batches(client, round, num_steps or self.tiny.num_steps(client))):
            gradients = self.gradients(local, client, round, step, batch.inputs, batch.targets, divisor or len(batch.targets))
            for name, weight in local.named_parameters():
                weight.grad = gradients[name] + pull(name, weight.detach())
            optimizer.step()
        return local

    def assert_some_were_clipped(self) -> None:
        share = sum(norm > CLIP for norm in self.norms) / len(self.norms)
        assert 0.1 < share < 0.9


def weights_of(net) -> State:
    return {name: weight.detach().clone() for name, weight in net.named_parameters()}


def used_by(method, client) -> State:
    return method.personal_model(weights_of(method.net), method.stored.states.read(client))


@pytest.fixture
def clipped(tiny) -> Clipped:
    return Clipped(tiny)


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "sgd tce"], indirect=True)
def test_fedavg(tiny, clipped):
    """Three rounds, short batches divided by their sizes; momentum takes the noisy gradients."""
    actual, net = tiny.train(FedAvg, norm=False, privacy=PRIVACY), tiny.new_net(norm=False)
    for round, cohort in tiny.rounds:
        net.load_state_dict(tiny.mean({client: clipped.visit(net, client, round) for client in cohort}))
    tiny.assert_same(actual.net, net)
    clipped.assert_some_were_clipped()


def test_fedavg_on_poisson_batches(tiny, clipped):
    """With accounting: batches of 2 on average, divided by 2 whatever came up; nothing came up in some, a whole shard in none.

    Client 3 has 4 samples, hence a rate of a half; a step without samples is a step of noise alone.
    """
    sizes, batch_size = tiny.shard_sizes, 2
    data = tiny.new_data(batch_size=batch_size)
    actual, net = tiny.train(FedAvg, data, norm=False, privacy=DPSGD(SIGMA, CLIP, accounting=True)), tiny.new_net(norm=False)
    tiny.data, seen = data, []
    for round, cohort in tiny.rounds:
        steps = {client: 2 * -(-sizes[client] // batch_size) for client in cohort}
        batches = data.client_batches(poisson=True)
        seen += [len(batch.targets) for client in cohort for batch in batches.batches(client, round, steps[client])]
        locals = {client: clipped.visit(net, client, round, num_steps=steps[client], divisor=2) for client in cohort}
        net.load_state_dict(tiny.mean(locals))
    tiny.assert_same(actual.net, net)
    assert 0 in seen
    assert len(set(seen)) >= 4


def test_fedprox_is_pulled_after_the_noise(tiny, clipped):
    """``mu (w - w_t)`` is added to the noisy gradient, not clipped."""
    actual, net = tiny.train(FedProx, norm=False, mu=0.7, privacy=PRIVACY), tiny.new_net(norm=False)
    for round, cohort in tiny.rounds:
        received = weights_of(net)
        locals = {
            client: clipped.visit(net, client, round, lambda name, weight: 0.7 * (weight - received[name]))  # noqa: B023
            for client in cohort
        }
        net.load_state_dict(tiny.mean(locals))
    tiny.assert_same(actual.net, net)
    clipped.assert_some_were_clipped()


def test_a_second_model_is_pulled_after_the_noise(tiny, clipped):
    """L2SP's ``0.7 (v - w_0)`` is taken at Ditto's v, not at the model that the client sends."""
    actual = tiny.train(Ditto, norm=False, penalty=0.0, tasks=L2SP(0.7), privacy=PRIVACY)
    start, nets = weights_of(tiny.new_net(norm=False)), {}
    for round, cohort in tiny.rounds:
        for client in cohort:
            before = nets.get(client, tiny.new_net(norm=False))
            nets[client] = clipped.visit(before, client, round, lambda name, weight: 0.7 * (weight - start[name]))
    for client, net in nets.items():
        tiny.assert_same(actual.stored.states.read(client).method["model"], weights_of(net))


def test_scaffold_corrects_after_the_noise(tiny, clipped):
    """``- c_i + c`` is added to the noisy gradient; the variates, ``c_i - c + (x - y) / (K lr)``, come from noisy steps."""
    actual, net = tiny.train(SCAFFOLD, norm=False, privacy=PRIVACY), tiny.new_net(norm=False)
    zeros = {name: torch.zeros_like(weight) for name, weight in weights_of(net).items()}
    server, variates = dict(zeros), dict.fromkeys(range(tiny.num_clients), zeros)
    for round, cohort in tiny.rounds:
        received, locals, change = weights_of(net), {}, dict(zeros)
        for client in cohort:
            variate = variates[client]
            pull = {name: server[name] - variate[name] for name in server}
            locals[client] = clipped.visit(net, client, round, lambda name, weight, pull=pull: pull[name])
            length = tiny.num_steps(client) * tiny.rate(round)
            variates[client] = {
                name: variate[name] - server[name] + (received[name] - weight) / length
                for name, weight in weights_of(locals[client]).items()
            }
            change = {name: change[name] + variates[client][name] - variate[name] for name in change}
        server = {name: server[name] + change[name] / tiny.num_clients for name in server}
        net.load_state_dict(tiny.mean(locals, uniform=True))
    tiny.assert_same(actual.net, net)
    tiny.assert_same(actual.server_states.tensors("variate"), server)


def test_fedcurv_is_pulled_after_the_noise(tiny, clipped):
    """``2 lambda sum_j F_j (w - theta_j)`` over the others of the last round; F_j is taken without noise."""
    actual, net, last = tiny.train(FedCurv, norm=False, penalty=0.3, privacy=PRIVACY), tiny.new_net(norm=False), {}
    for round, cohort in tiny.rounds:
        locals = {}
        for client in cohort:
            others = [terms for other, terms in last.items() if other != client]

            def pull(name, weight, others=others):
                return sum((0.6 * fisher[name] * (weight - theta[name]) for fisher, theta in others), torch.zeros(()))

            locals[client] = clipped.visit(net, client, round, pull)
        last = {client: (tiny.fisher(local, client), weights_of(local)) for client, local in locals.items()}
        net.load_state_dict(tiny.mean(locals))
    tiny.assert_same(actual.net, net)


def test_feddyn_is_pulled_after_the_noise(tiny, clipped):
    """``alpha (w - w_t) - g_k`` is added to the noisy gradient; then g_k falls by ``alpha (w_k - w_t)``, h by its mean."""
    alpha = 0.3
    actual, net = tiny.train(FedDyn, norm=False, alpha=alpha, privacy=PRIVACY), tiny.new_net(norm=False)
    zeros = {name: torch.zeros_like(weight) for name, weight in weights_of(net).items()}
    h, g = dict(zeros), dict.fromkeys(range(tiny.num_clients), zeros)
    for round, cohort in tiny.rounds:
        received, locals = weights_of(net), {}
        for client in cohort:

            def pull(name, weight, linear=g[client], received=received):
                return alpha * (weight - received[name]) - linear[name]

            locals[client] = clipped.visit(net, client, round, pull)
            delta = {name: weight - received[name] for name, weight in weights_of(locals[client]).items()}
            g[client] = {name: g[client][name] - alpha * delta[name] for name in delta}
            h = {name: h[name] - alpha * delta[name] / tiny.num_clients for name in delta}
        mean = tiny.mean(locals, uniform=True)
        net.load_state_dict({name: mean[name] - h[name] / alpha for name in mean})
    tiny.assert_same(actual.net, net)


REFUSED = ("FedDecorr", "FedSAM", "FedSOL", "MoFedSAM", "PFedMe")  # with DP-SGD, as their own tests show


@pytest.mark.parametrize("name", [name for name in methods.__all__ if name not in REFUSED])
@pytest.mark.one_in(4)
def test_without_noise_and_limit_it_is_the_method_itself(tiny, name):
    """C = 1000, which nothing reaches, and sigma = 1e-15, noise of 1e-12: three rounds of any method, to 1e-9.

    MOON, FedNTD and Flashback ask frozen nets within their losses; a FedReg step takes its gradient at slow weights.
    """
    actual, expected = (
        tiny.train_any(name, norm=False, privacy=privacy) for privacy in (DPSGD(1e-15, clipping_norm=1000.0), None)
    )
    tiny.assert_same(actual.state_dict(), expected.state_dict())
    for client in expected.stored.states.clients():
        tiny.assert_same_state(actual.stored.states.read(client), expected.stored.states.read(client))
    # Frozen nets are made in the middle of a loss, and still bear no hook.
    kept = [actual.engine.net, *(scope.net for scope in [vars(actual.engine).get("frozen")] if scope is not None)]
    assert len(kept) == 2 or name != "MOON"
    layers = [layer for net in kept for layer in [*net.modules()][1:]]  # the net itself has those of accept_foreign
    assert not any(layer._forward_hooks or layer._backward_hooks for layer in layers)


@pytest.mark.parametrize("name", [name for name in methods.__all__ if name not in REFUSED])
@pytest.mark.one_in(4)
def test_every_method_runs_on_poisson_batches(tiny, name):
    """With noise: finite, and elsewhere than without."""
    private, plain = (
        tiny.train_any(name, norm=False, rounds=2, privacy=privacy) for privacy in (DPSGD(SIGMA, CLIP, accounting=True), None)
    )
    assert [report.nonfinite for report in private.reports] == [[], []]
    # Where the global weights are not trained those that a client uses are.
    models = [[weights_of(run.net), used_by(run, 1)] for run in (private, plain)]
    for name in (name for name, weight in plain.net.named_parameters() if weight.requires_grad):
        assert all(model[name].isfinite().all() for model in models[0])
        assert any(not torch.equal(one[name], other[name]) for one, other in zip(*models, strict=True)), name


def test_a_run_in_two_parts_ends_as_one_in_one(tiny, tmp_path):
    """The same draws of noise and of samples after a checkpoint, whatever the global seed is."""
    settings = {"norm": False, "privacy": DPSGD(SIGMA, CLIP, accounting=True)}
    torch.manual_seed(1)
    tiny.train_any("SCAFFOLD", rounds=1, **settings).trainer.save_checkpoint(tmp_path / "1.ckpt")
    whole = tiny.train_any("SCAFFOLD", **settings)
    torch.manual_seed(2)
    resumed = tiny.train_any("SCAFFOLD", ckpt_path=tmp_path / "1.ckpt", **settings)
    tiny.assert_same(resumed.state_dict(), whole.state_dict(), atol=0)


def test_no_method_calls_parts_of_a_net_that_is_clipped_as_a_whole(tiny):
    """Neither of a net with a weight outside its layers, nor of one with a class layer of another name."""

    class Scaled(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.features, self.classifier, self.scale = net.features, net.classifier, nn.Parameter(torch.ones(()).double())

        def forward(self, inputs):
            return self.scale * self.classifier(self.features(inputs))

    class Renamed(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.body, self.fc = net.features, net.classifier

        def forward(self, inputs):
            return self.fc(self.body(inputs))

    for base, wrap in itertools.product((FedAvg, MOON, FedRoD), (Scaled, Renamed)):

        class Wrapped(base):
            def __init__(self, net, wrap=wrap, **common):
                super().__init__(wrap(net), **common)

        tiny.train(Wrapped, norm=False, rounds=1, privacy=PRIVACY)
