"""Federated methods on classes that arrive, against a loop with a head that grows; every method, and what is refused."""

import pytest
import torch
from declared_by_tests import changes, needs_of, trains_at_the_server
from pairs import Pair
from written_pages import round_of

from fl_lightning import methods
from fl_lightning.methods import MOON, SCAFFOLD, FedAvg, FedBN, FedCurv, FedDF, FedPer, FedProx, FedReg, FedRS
from fl_lightning.tasks import ClassLearner, FedWeIT, LwF, Replay, ServerEWC

NAMES = [name for name in methods.__all__ if ClassLearner().obstacle_to(getattr(methods, name)) is None]
PENALTY, RATE, BATCH_SIZE = 0.7, 0.1, 7


def rows(tensors, weights):
    """Of tensors with rows for all classes those that the weights have."""
    return {name: tensors[name][: len(weight)] for name, weight in weights.items()}


def all_rows(tensors, like):
    """With zeros for the classes to come."""
    return {name: torch.cat([tensor, like[name][len(tensor) :]]) for name, tensor in tensors.items()}


@pytest.mark.parametrize("softmax_over", ["new", "seen"])
def test_scaffold_equals_its_loop(arriving, softmax_over):
    """``g - c_i + c``, option II; variates of rows that are not there yet are 0."""
    zeros = {name: torch.zeros_like(weight) for name, weight in arriving.new_net().named_parameters()}
    c, variates, changes, at = dict(zeros), dict.fromkeys(range(3), zeros), [], [1]

    def new_round():
        for change in changes:
            c.update({name: c[name] + change[name] / 3 for name in c})
        changes.clear()

    def objective(visit, weights, inputs, targets):
        if visit.round != at[0]:
            at[0] = visit.round
            new_round()
        loss = arriving.new_loss if softmax_over == "new" else arriving.seen_loss
        mine, server = rows(variates[visit.client], weights), rows(c, weights)
        return loss(visit, weights, inputs, targets) + sum(((server[n] - mine[n]) * weights[n]).sum() for n in weights)

    def after_fit(visit, weights):
        steps = -(-visit.data.num_train(visit.client) // BATCH_SIZE)
        length = RATE * sum(2 - 0.5**step for step in range(steps))  # v of gradients of 1, with momentum 0.5
        old = variates[visit.client]
        moved = all_rows({name: (visit.received[name] - weights[name]) / length for name in weights}, zeros)
        variates[visit.client] = {name: old[name] - c[name] + moved[name] for name in c}
        changes.append({name: variates[visit.client][name] - old[name] for name in c})

    method = arriving.train(Pair(SCAFFOLD, ClassLearner), softmax_over=softmax_over, server_weighting="n_weighted")
    arriving.assert_same(method.net, arriving.plain(objective, after_fit=after_fit))
    new_round()
    arriving.assert_same(method.server_states.tensors("variate"), c)


@pytest.mark.parametrize("softmax_over", ["new", "seen"])
def test_fedcurv_equals_its_loop(arriving, softmax_over):
    """``lambda sum_j F_j (w - theta_j)^2`` over the others of the round before, F of the loss of classes that compete."""
    zeros = {name: torch.zeros_like(weight) for name, weight in arriving.new_net().named_parameters()}
    loss = arriving.new_loss if softmax_over == "new" else arriving.seen_loss
    sent = {}

    def objective(visit, weights, inputs, targets):
        before = [tensors for (round, j), tensors in sent.items() if round == visit.round - 1 and j != visit.client]
        others = [(rows(F, weights), rows(theta, weights)) for F, theta in before]
        pull = sum((F[n] * (weights[n] - theta[n]) ** 2).sum() for F, theta in others for n in weights)
        return loss(visit, weights, inputs, targets) + PENALTY * pull

    def after_fit(visit, weights):
        leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        (batch,) = visit.data.client_batches().client_samples(visit.client)
        fisher = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        for i in range(len(batch.targets)):
            value = loss(visit, leaves, batch.inputs[i : i + 1], batch.targets[i : i + 1])
            for name, gradient in zip(fisher, torch.autograd.grad(value, list(leaves.values()))):
                fisher[name] += gradient**2 / len(batch.targets)
        sent[visit.round, visit.client] = all_rows(fisher, zeros), all_rows(weights, zeros)

    method = arriving.train(Pair(FedCurv, ClassLearner), softmax_over=softmax_over, penalty=PENALTY)
    arriving.assert_same(method.net, arriving.plain(objective, after_fit=after_fit))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.one_in(3)
def test_every_method_learns_all_tasks(arriving, name):
    """With other cohorts each round; every class is known in the end."""
    of_data, _ = needs_of(name)
    sgd = {"optimizer": lambda weights: torch.optim.SGD(weights, lr=RATE)}
    data = arriving.new_data(cohorts=arriving.cohorts, **of_data)
    trained = arriving.train(Pair(getattr(methods, name), ClassLearner), data, **sgd)
    assert trained.tasks.is_over
    assert int(trained.net.num_seen) == 6
    assert not any(report.undone or report.nonfinite for report in trained.seen.rounds)
    assert all(weight.isfinite().all() for weight in trained.net.parameters())


def test_who_learns_classes():
    """Those whose clients' loss is the learner's and whose model, trained by clients alone, is one for all."""
    expected = [
        name
        for name in methods.__all__
        if not changes(name, "client_loss", "client_step")
        and not trains_at_the_server(name)
        and "a client uses" not in round_of(name)
    ]
    assert {"FedAvg", "FedProx", "SCAFFOLD"} <= set(expected)
    assert expected == NAMES


def test_any_class_learner_with_a_method(arriving):
    """Both act."""
    trained = arriving.train(Pair(FedProx, LwF), rounds=3, mu=2.0, distillation=0.5)
    free = arriving.train(LwF, rounds=3, distillation=0.5)
    assert (trained.net.classifier.weight - free.net.classifier.weight).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (MOON, "overrides client_loss"),
        (FedRS, "overrides client_loss"),
        (FedReg, "overrides client_loss"),
        (FedPer, "keeps weights with each client"),
        (FedBN, "keeps weights with each client"),
        (FedDF, "trains on public samples"),
    ],
)
def test_what_does_not_combine_is_refused(arriving, method, why):
    """When the method is made, in one line with what to use."""
    message = f"^model.tasks is ClassLearner, but {method.__name__} {why}.*: use (one|a method) .* such as FedAvg$"
    with pytest.raises(ValueError, match=message):
        method(arriving.new_net(), tasks=ClassLearner())


def test_fedweit_learns_by_its_own(arriving):
    with pytest.raises(ValueError, match=r"^model.tasks is ClassLearner, but FedWeIT learns by WeightedTransfer: use that"):
        FedWeIT(arriving.new_net(), tasks=ClassLearner())


def test_a_learner_is_part_of_one_method(arriving):
    learner = ClassLearner()
    FedAvg(arriving.new_net(), tasks=learner)
    with pytest.raises(
        ValueError, match=r"^model.tasks is ClassLearner, which already belongs to another method: give each method its own$"
    ):
        FedAvg(arriving.new_net(), tasks=learner)


def test_replay_shares_no_names_with_fedcurv(arriving):
    """Without memory FedCurv alone is left."""
    both, settings = Pair(FedCurv, Replay), {"penalty": 0.5, "softmax_over": "seen"}
    alone = arriving.train(Pair(FedCurv, ClassLearner), **settings)
    arriving.assert_same(arriving.train(both, memory=0, **settings).net, alone.net, atol=1e-12)
    acting = arriving.train(both, memory=8, **settings)
    assert (acting.net.classifier.weight - alone.net.classifier.weight).abs().max() > 1e-6


def test_two_penalties_of_one_name_both_act(arriving):
    """That of EWC on arriving classes and FedCurv's: without one the other is left."""
    both = Pair(FedCurv, ServerEWC)
    fedcurv = arriving.train(Pair(FedCurv, ClassLearner), penalty=0.5)
    ewc = arriving.train(ServerEWC, penalty=5.0)
    for settings, alone in (
        ({"penalty": 0.0, "penalty_of_method": 0.5}, fedcurv),
        ({"penalty": 5.0, "penalty_of_method": 0.0}, ewc),
    ):
        arriving.assert_same(arriving.train(both, **settings).net, alone.net, atol=1e-12)
    acting = arriving.train(both, penalty=5.0, penalty_of_method=0.5)
    for alone in (fedcurv, ewc):
        assert (acting.net.classifier.weight - alone.net.classifier.weight).abs().max() > 1e-6
