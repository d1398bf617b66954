"""Federated methods on task streams against plain loops: what they add acts on the body alone."""

import pytest
import torch
from pairs import Pair

from fl_lightning.methods import SCAFFOLD, FedCM, FedCurv, FedNova, FedProx
from fl_lightning.tasks import TaskLearner

MU, PENALTY = 0.3, 0.7


@pytest.mark.parametrize("train_unsampled", [False, True])
def test_fedprox_pulls_the_body(tiny, train_unsampled):
    """``mu/2 * ||w - w_received||^2`` over the body; heads are free. Who does not receive is pulled to where it started."""
    method = tiny.train(Pair(FedProx, TaskLearner), tiny.new_data(cohorts=tiny.cohorts), mu=MU, train_unsampled=train_unsampled)

    def penalty(visit, weights):
        return MU / 2 * sum(((weights[name] - visit.received[name]) ** 2).sum() for name in tiny.body)

    tiny.assert_plain(method, tiny.plain(penalty, cohorts=tiny.cohorts, train_unsampled=train_unsampled))


@pytest.mark.parametrize("train_unsampled", [False, True])
def test_scaffold_corrects_the_body(tiny, train_unsampled):
    """``g - c_i + c`` on the body, option II; c moves by the cohort's changes over all three clients.

    The gradients of three steps with momentum 0.5 count 1 + 0.5 + 0.25, 1 + 0.5 and 1 times, at a rate of 0.1.

    A client that trains for itself has no correction and does not renew its variate.
    """
    c, variates, changes = {name: torch.zeros_like(tiny.weights[name]) for name in tiny.body}, {}, []
    zeros = dict(c)

    def correct(visit, name, gradient):
        if not visit.sampled or name not in c:
            return gradient
        return gradient - variates.get(visit.client, zeros)[name] + c[name]

    def after_fit(visit, weights):
        if visit.sampled:
            old = variates.get(visit.client, zeros)
            new = {name: old[name] - c[name] + (visit.received[name] - weights[name]) / 0.425 for name in c}
            changes.append({name: new[name] - old[name] for name in c})
            variates[visit.client] = new

    def after_round():
        for change in changes:
            c.update({name: c[name] + change[name] / 3 for name in c})
        changes.clear()

    method = tiny.train(Pair(SCAFFOLD, TaskLearner), tiny.new_data(cohorts=tiny.cohorts), train_unsampled=train_unsampled)
    tiny.assert_plain(
        method,
        tiny.plain(
            correct=correct,
            after_fit=after_fit,
            after_round=after_round,
            cohorts=tiny.cohorts,
            train_unsampled=train_unsampled,
        ),
    )
    tiny.assert_same(method.server_states.tensors("variate"), c)


@pytest.mark.parametrize("train_unsampled", [False, True])
def test_fedcurv_holds_the_body(tiny, train_unsampled):
    """``lambda * sum_{j != i} sum F_j (w - theta_j)^2`` over the clients that sent in the round before, on the body.

    F_j is of client j's present task, its head included in the gradients' path and not in the sum.
    """
    known, new = {}, {}

    def penalty(visit, weights):
        others = [known[j] for j in known if j != visit.client and visit.sampled]
        return PENALTY * sum((F[n] * (weights[n] - theta[n]) ** 2).sum() for F, theta in others for n in tiny.body)

    def after_fit(visit, weights):
        if visit.sampled:
            new[visit.client] = (tiny.fisher(weights, visit.client), dict(weights))

    def after_round():
        known.clear()
        known.update(new)
        new.clear()

    data = tiny.new_data(cohorts=tiny.cohorts)
    method = tiny.train(Pair(FedCurv, TaskLearner), data, penalty=PENALTY, train_unsampled=train_unsampled)
    expected = tiny.plain(
        penalty, after_fit=after_fit, after_round=after_round, cohorts=tiny.cohorts, train_unsampled=train_unsampled
    )
    tiny.assert_same(dict(method.net.named_parameters()), expected.server)
    tiny.assert_outputs(method, expected.outputs)
    tiny.assert_same(method.server_states.tensors("fisher"), {n: sum(F[n] for F, _ in known.values()) for n in tiny.body})


def test_without_their_terms_they_are_fedavg(tiny):
    """mu = 0 and lambda = 0: bit for bit. With them the body ends elsewhere."""
    plain = tiny.train(TaskLearner)
    for method, free, strong in (
        (Pair(FedProx, TaskLearner), {"mu": 0.0}, {"mu": MU}),
        (Pair(FedCurv, TaskLearner), {"penalty": 0.0}, {"penalty": PENALTY}),
    ):
        tiny.assert_same(dict(tiny.train(method, **free).net.named_parameters()), dict(plain.net.named_parameters()), 0)
        apart = tiny.train(method, **strong).net.hidden.weight - plain.net.hidden.weight
        assert apart.abs().max() > 1e-4, method


def test_every_federated_method_sends_the_body_up_and_down(tiny):
    """P bytes a client and round, up and down; SCAFFOLD twice that; FedCurv P more up and 2 P more down."""
    size = 8 * sum(tiny.weights[name].numel() for name in tiny.body)
    for method, down, up in ((FedProx, 1, 1), (SCAFFOLD, 2, 2), (FedCurv, 3, 2)):
        for report in tiny.train(Pair(method, TaskLearner), rounds=3).seen.rounds:
            assert (report.bytes_down, report.bytes_up) == (3 * down * size, 3 * up * size), method


@pytest.mark.parametrize("method", [FedNova, FedCM, SCAFFOLD])
def test_momentum_that_clients_keep_is_refused_where_steps_are_counted(tiny, method):
    """The count begins with a velocity of 0. Option I of SCAFFOLD, which counts none, and plain SGD are not refused."""
    with pytest.raises(ValueError, match=f"reset_adam_each_round is false, by which .*{method.__name__} counts steps"):
        tiny.train(Pair(method, TaskLearner), reset_adam_each_round=False)
    allowed = {"option": "I"} if method is SCAFFOLD else {"optimizer": lambda weights: torch.optim.SGD(weights, lr=0.1)}
    tiny.train(Pair(method, TaskLearner), reset_adam_each_round=False, rounds=1, **allowed)
