"""Methods with learners of tasks: pairs run, some against plain loops, and what does not combine is refused."""

from functools import partial

import pytest
import torch
from declared_by_tests import needs_on_tasks
from pairs import DECOMPOSED, LEARNERS, Pair, pair_of

from fl_lightning import FederatedModule, methods
from fl_lightning import tasks as learners
from fl_lightning.methods import MOON, Ditto, FedAvg, FedBABU, FedDF, FedDyn, FedNTD, FedReg, Flashback
from fl_lightning.protocol import DataNeeds, Needs
from fl_lightning.tasks import EWC, FedWeIT, TaskLearner, WeightedTransfer


def combine(method: str, learner: str) -> bool:
    return getattr(learners, learner)().obstacle_to(getattr(methods, method)) is None


# Each method with two learners, and each learner with two fifths of the methods.
ON_TASKS = [
    f"{method} {learner}"
    for i, method in enumerate(name for name in methods.__all__ if any(combine(name, learner) for learner in LEARNERS))
    for j, learner in enumerate(LEARNERS)
    if combine(method, learner) and (j - i) % len(LEARNERS) in (0, 2)
]


def plain_sgd(weights):
    return torch.optim.SGD(weights, lr=0.05)


@pytest.mark.filterwarnings("ignore:model.net has no BatchNorm")
@pytest.mark.parametrize("name", ON_TASKS)
@pytest.mark.one_in(3)
def test_a_pair_runs(tiny, tmp_path, name):
    """Two tasks and a round, some clients alone; what came back from a checkpoint ends bit for bit as one run."""
    method, learner = name.split()
    of_data, options = needs_on_tasks(method)
    settings = {"optimizer": plain_sgd, "train_unsampled": True, **options}
    settings |= {"l2": 1.0, "l1": 0.02} if learner in DECOMPOSED else {}
    data = {"cohorts": tiny.cohorts, **of_data}
    whole, resumed = (
        tiny.train(pair_of(name), tiny.new_data(**data), rounds=5, checkpoints=folder, ckpt_path=path, **settings)
        for folder, path in ((tmp_path, None), (None, tmp_path / "step=3.ckpt"))
    )
    tiny.assert_same_end(resumed, whole)
    assert not any(report.undone or report.nonfinite for report in whole.seen.rounds)
    assert any(report.bytes_up > 0 for report in whole.seen.rounds) == (method != "LocalOnly")
    hidden = "hidden.parametrizations.weight.original" if learner in DECOMPOSED else "hidden.weight"
    assert method == "LocalOnly" or (whole.net.get_parameter(hidden) - tiny.weights["hidden.weight"]).abs().max() > 1e-3


ALPHA, EARLIER, MU, RATE = 0.3, 5.0, 0.8, 0.1


@pytest.mark.parametrize("train_unsampled", [False, True])
def test_feddyn_with_ewc(tiny, train_unsampled):
    """``g + alpha (w - w_received) - g_k`` on the body and EWC's penalty; h over all three clients.

    Who does not send keeps its g_k; heads are neither pulled nor accumulated.
    """
    zeros = {name: torch.zeros_like(tiny.weights[name]) for name in tiny.body}
    h, g, moved, learned, present = dict(zeros), {c: dict(zeros) for c in range(3)}, [], {}, {}

    def penalty(visit, weights):
        present.update(weights)
        earlier = [learned[visit.client, j] for j in range(visit.position) if (visit.client, j) in learned]
        return EARLIER / 2 * sum((F[n] * (weights[n] - theta[n]) ** 2).sum() for F, theta in earlier for n in tiny.body)

    def correct(visit, name, gradient):
        if name not in zeros:
            return gradient
        return gradient + ALPHA * (present[name].detach() - visit.received[name]) - g[visit.client][name]

    def after_fit(visit, weights):
        if visit.is_last:
            learned[visit.client, visit.position] = (tiny.fisher(weights, visit.client), dict(weights))
        if visit.sampled:
            change = {n: weights[n] - visit.received[n] for n in tiny.body}
            moved.append(change)
            g[visit.client] = {n: g[visit.client][n] - ALPHA * change[n] for n in tiny.body}

    def serve(server):
        for name in tiny.body:
            h[name] = h[name] - ALPHA * sum(change[name] for change in moved) / 3
            server[name] = server[name] - h[name] / ALPHA
        moved.clear()

    expected = tiny.plain(
        penalty, correct, after_fit, cohorts=tiny.cohorts, train_unsampled=train_unsampled, after_server=serve
    )
    method = tiny.train(
        Pair(FedDyn, EWC),
        tiny.new_data(cohorts=tiny.cohorts),
        alpha=ALPHA,
        penalty=EARLIER,
        train_unsampled=train_unsampled,
    )
    tiny.assert_plain(method, expected)
    tiny.assert_same(method.server_states.tensors("h"), h)


def test_moon_with_ewc(tiny):
    """The contrast of features with those received and those of the visit before, and EWC's penalty."""
    learned, previous = {}, {}

    def features(weights, inputs):
        hidden = torch.nn.functional.conv2d(inputs, weights["conv.weight"], weights["conv.bias"]).tanh().flatten(1)
        return torch.nn.functional.linear(hidden, weights["hidden.weight"], weights["hidden.bias"]).tanh()

    def penalty(visit, weights):
        earlier = [learned[visit.client, j] for j in range(visit.position)]
        return EARLIER / 2 * sum((F[n] * (weights[n] - theta[n]) ** 2).sum() for F, theta in earlier for n in tiny.body)

    def contrast(visit, weights, inputs):
        z, z_global, z_previous = (
            features(one, inputs) for one in (weights, visit.received, previous.get(visit.client, visit.received))
        )
        near, far = (torch.cosine_similarity(z, other, dim=1) / 0.5 for other in (z_global, z_previous))
        return MU * (torch.logaddexp(near, far) - near).mean()

    def after_fit(visit, weights):
        previous[visit.client] = dict(weights)
        if visit.is_last:
            learned[visit.client, visit.position] = (tiny.fisher(weights, visit.client), dict(weights))

    expected = tiny.plain(penalty, after_fit=after_fit, of_batch=contrast)
    method = tiny.train(Pair(MOON, EWC), mu=MU, penalty=EARLIER)
    tiny.assert_plain(method, expected)
    tiny.assert_moved(expected.server, tiny.body)


GAMMA, STEP, NUM_STEPS = 0.4, 0.15, 2


class FedRegFits:
    """FedReg's five steps in place of a fit by SGD, from and on weights by name, which are taken together in every product."""

    def __init__(self, tiny):
        self.tiny, self.projections = tiny, []

    def __call__(self, received, client, round, objective, correct, rate):
        served = self.tiny.data.client_batches()
        rows = [self.rehearsal(received, batch) for batch in served.epoch(client, round, "pseudo data")]
        t = received
        for step, batch in enumerate(served.batches(client, round, 3)):
            pseudo, soft, perturbed, hard = rows[step % len(rows)]
            slow = {n: GAMMA * t[n] + (1 - GAMMA) * received[n] for n in t}
            g = self.gradient(slow, lambda weights, batch=batch: objective(weights, batch.inputs, batch.targets))
            t = {n: t[n] - rate * g[n] for n in t}
            middle = {n: (t[n] + received[n]) / 2 for n in t}
            g_s, g_p = (
                self.gradient(middle, lambda weights, inputs=inputs, labels=labels: self.losses(weights, inputs, labels).mean())
                for inputs, labels in ((pseudo, soft), (perturbed, hard))
            )
            for g_old in (g_s, g_p):
                product = sum(((t[n] - received[n]) * g_old[n]).sum() for n in t)
                square = sum(g_old[n].square().sum() for n in t)
                self.projections.append(float(product))
                t = {n: t[n] - max(0.0, float(product / (square + 1e-30))) * g_old[n] for n in t}
        return t

    def rehearsal(self, received, batch):
        """Pseudo inputs, what the received weights say of them, perturbed inputs and true labels."""
        inputs, hard = batch.inputs[batch.real], torch.nn.functional.one_hot(batch.targets[batch.real], 2).double()
        pseudo, perturbed = inputs, inputs
        for _ in range(NUM_STEPS):
            pseudo = pseudo + STEP * self.ascent(received, pseudo, hard)
            perturbed = perturbed + STEP / 100 * self.ascent(received, perturbed, hard)
        return pseudo, self.tiny.logits(received, pseudo).softmax(dim=1), perturbed, hard

    def ascent(self, weights, inputs, hard):
        inputs = inputs.clone().requires_grad_()
        return torch.autograd.grad(self.losses(weights, inputs, hard).sum(), inputs)[0].sign()

    def losses(self, weights, inputs, labels):
        return -(labels * (self.tiny.logits(weights, inputs).softmax(dim=1) + 1e-12).log()).sum(dim=1)

    @staticmethod
    def gradient(weights, objective):
        leaves = {n: weight.detach().requires_grad_() for n, weight in weights.items()}
        return dict(zip(leaves, torch.autograd.grad(objective(leaves), list(leaves.values()))))


def test_fedreg_with_ewc(tiny, monkeypatch):
    """The step before the projections is on the loss and EWC's penalty, both at ``gamma w + (1 - gamma) w_received``.

    What a visit receives includes the head that a task begins with. The first projection moves the weights in every step, the
    second in some.
    """
    learned, fits = {}, FedRegFits(tiny)

    def penalty(visit, weights):
        earlier = [learned[visit.client, j] for j in range(visit.position) if (visit.client, j) in learned]
        return EARLIER / 2 * sum((F[n] * (weights[n] - theta[n]) ** 2).sum() for F, theta in earlier for n in tiny.body)

    def after_fit(visit, weights):
        if visit.is_last:
            learned[visit.client, visit.position] = (tiny.fisher(weights, visit.client), dict(weights))

    monkeypatch.setattr(tiny, "fit", fits)
    expected = tiny.plain(penalty, after_fit=after_fit, cohorts=tiny.cohorts)
    settings = {"gamma": GAMMA, "pseudo_step": STEP, "num_perturbations": NUM_STEPS, "penalty": EARLIER}
    sgd = partial(torch.optim.SGD, lr=RATE)
    method = tiny.train(Pair(FedReg, EWC), tiny.new_data(cohorts=tiny.cohorts), optimizer=sgd, **settings)
    tiny.assert_plain(method, expected)
    tiny.assert_moved(expected.server, tiny.body)
    assert min(fits.projections[::2]) > 0  # what was received says of the pseudo data exactly what their labels say
    assert min(fits.projections[1::2]) < 0 < max(fits.projections[1::2])


# A method of a user's, and what is refused ----------------------------------------------------------------------------


class Mine(FederatedModule):
    """A method of a user's."""

    needs = Needs(sample_indices=True)

    def __init__(self, net, strength: float = 1.0, **common):
        super().__init__(net, **common)
        self.strength = strength


def test_a_users_method_learns_tasks(tiny):
    """It needs what both need; its class is as it was."""
    run = tiny.train(Pair(Mine, EWC), rounds=3, strength=2.0, penalty=3.0)
    assert run.needs == Needs(client_weights=True, sample_indices=True, data=DataNeeds(task_streams=True))
    assert Mine.needs == Needs(sample_indices=True)
    assert (run.strength, run.tasks.penalty) == (2.0, 3.0)
    assert all(report.bytes_up > 0 for report in run.seen.rounds)


@pytest.mark.parametrize("method", [Ditto, FedBABU, FedDF, Flashback])
@pytest.mark.parametrize("learner", [TaskLearner, EWC])
def test_what_does_not_combine_is_refused(tiny, method, learner):
    """By what the method declares: personal models, public samples."""
    with pytest.raises(ValueError, match=rf"^model.tasks is {learner.__name__}, but {method.__name__} \w+ .*, such as FedAvg$"):
        method(tiny.new_net(), tasks=learner())


def test_a_learner_of_another_kind_is_refused(tiny):
    """FedWeIT has its own, which is of use nowhere else."""
    with pytest.raises(ValueError, match=r"^model.tasks is EWC, but FedWeIT learns by WeightedTransfer: use that, or another"):
        FedWeIT(tiny.new_net(), tasks=EWC())
    with pytest.raises(ValueError, match=r"^model.tasks is WeightedTransfer, but FedAvg gathers no knowledge .*: use FedWeIT"):
        FedAvg(tiny.new_net(), tasks=WeightedTransfer())


def test_a_learner_of_two_methods_is_refused(tiny):
    """Each would move the other's clock."""
    tasks = EWC()
    FedAvg(tiny.new_net(), tasks=tasks)
    with pytest.raises(
        ValueError, match=r"^model.tasks is EWC, which already belongs to another method: give each method its own$"
    ):
        FedAvg(tiny.new_net(), tasks=tasks)


@pytest.mark.parametrize("learner", ["EWC", "SingleTask"])
def test_a_method_that_shares_nothing_is_refused(tiny, learner):
    """LG-FedAvg shares the class layer alone, which belongs to single tasks; SingleTask has nothing but single tasks."""
    method = "LGFedAvg" if learner == "EWC" else "FedAvg"
    with pytest.raises(ValueError, match=rf"^{method} with {learner} leaves no weight of model.net to share, .* LocalOnly$"):
        tiny.train(pair_of(f"{method} {learner}"))


@pytest.mark.parametrize("value", [0.0, 0.4])
def test_what_is_received_includes_what_a_task_begins_with(tiny, value):
    """FedNTD's teacher is the client's model as the task begins, with its fresh head: nothing to learn from it at first."""
    seen = []

    class Watched(FedNTD):
        def client_start(self, net, client):
            carry = super().client_start(net, client)
            seen.append(all(torch.equal(weight, client.received_state[name]) for name, weight in net.named_parameters()))
            return carry

    tiny.train(Pair(Watched, TaskLearner), beta=value)
    assert seen
    assert all(seen)
