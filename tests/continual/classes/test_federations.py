"""Federated methods on classes that arrive, against a loop with a head that grows; every name, and what is refused."""

import pytest
import torch
from declared_by_tests import changes, needs_of, trains_at_the_server
from written_pages import round_of

from fl_lightning import FedProx, continual, methods
from fl_lightning.continual import EWC, ClassLearner, FedCurvOnClasses, FedLwF, Replay, SCAFFOLDOnClasses, ServerEWC
from fl_lightning.continual.federated import combined_names
from fl_lightning.methods import MOON, FedBN, FedCurv, FedDF, FedPer, FedReg, FedRS

NAMES = [name for name in combined_names() if name.endswith("OnClasses")]
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
        length = RATE * -(-visit.data.num_train(visit.client) // BATCH_SIZE)
        old = variates[visit.client]
        moved = all_rows({name: (visit.received[name] - weights[name]) / length for name in weights}, zeros)
        variates[visit.client] = {name: old[name] - c[name] + moved[name] for name in c}
        changes.append({name: variates[visit.client][name] - old[name] for name in c})

    method = arriving.train(SCAFFOLDOnClasses, softmax_over=softmax_over, server_weighting="n_weighted")
    arriving.assert_same(method.net, arriving.plain(objective, after_fit=after_fit))
    new_round()
    arriving.assert_same(method.server_state("variate"), c)


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

    method = arriving.train(FedCurvOnClasses, softmax_over=softmax_over, penalty=PENALTY)
    arriving.assert_same(method.net, arriving.plain(objective, after_fit=after_fit))


@pytest.mark.parametrize("name", NAMES)
def test_every_name_learns_all_tasks(arriving, name):
    """With other cohorts each round; every class is known in the end."""
    of_data, _ = needs_of(name.removesuffix("OnClasses"))
    sgd = {"optimizer": lambda weights: torch.optim.SGD(weights, lr=RATE)}
    trained = arriving.train(getattr(continual, name), arriving.new_data(cohorts=arriving.cohorts, **of_data), **sgd)
    assert trained.is_over
    assert int(trained.net.num_seen) == 6
    assert not any(report.undone or report.nonfinite for report in trained.seen.rounds)
    assert all(weight.isfinite().all() for weight in trained.net.parameters())


def test_names():
    """Those whose clients' loss is the learner's and whose model, trained by clients alone, is one for all."""
    expected = [
        name
        for name in methods.__all__
        if not changes(name, "client_loss", "client_step")
        and not trains_at_the_server(name)
        and "a client uses" not in round_of(name)
    ]
    assert {"FedAvg", "FedProx", "SCAFFOLD"} <= set(expected)
    assert [f"{name}OnClasses" for name in expected] == NAMES


def test_any_class_learner_in_a_federation(arriving):
    """Of two classes by their bases alone, with the arguments of both."""

    class Mine(FedLwF, FedProx): ...

    trained = arriving.train(Mine, rounds=3, mu=2.0, distillation=0.5)
    free = arriving.train(FedLwF, rounds=3, distillation=0.5)
    assert (trained.net.classifier.weight - free.net.classifier.weight).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("base", "why"),
    [
        (MOON, "overrides client_loss"),
        (FedRS, "overrides client_loss"),
        (FedReg, "overrides client_loss"),
        (FedPer, "keeps weights with each client"),
        (FedBN, "keeps weights with each client"),
        (FedDF, "trains on public samples"),
        (EWC, "learns tasks itself"),
    ],
)
def test_what_does_not_combine_is_refused(base, why):
    """When the class is made, in one line with what to use."""
    with pytest.raises(TypeError, match=f"^Pair cannot be: {base.__name__} {why}.*: use one .* such as FedAvg$"):
        type("Pair", (ClassLearner, base), {})


def test_an_argument_that_is_a_hook_of_the_other_is_refused():
    """It would take the hook's place on the object."""

    class Remembers(ClassLearner):
        def remember(self): ...

    message = r"^Pair cannot be: FedCurv has an argument remember, which Remembers has as a hook or an attribute: rename one$"
    with pytest.raises(TypeError, match=message):
        type("Pair", (Remembers, FedCurv), {})


@pytest.mark.parametrize("learner", [ServerEWC, Replay])
def test_learners_share_no_names_with_fedcurv(arriving, learner):
    """Of EWC with lambda 0, and of replay without memory, FedCurv alone is left; its sums are not those of EWC."""
    off, on = ({"penalty": 0.0}, {"penalty": 1.0}) if learner is ServerEWC else ({"memory": 0}, {"memory": 8})
    both = type("Both", (learner, FedCurv), {})
    settings = {"others_penalty": 0.5, "softmax_over": "seen"}
    alone = arriving.train(FedCurvOnClasses, **settings)
    arriving.assert_same(arriving.train(both, **off, **settings).net, alone.net, atol=1e-12)
    acting = arriving.train(both, **on, **settings)
    assert (acting.net.classifier.weight - alone.net.classifier.weight).abs().max() > 1e-6


def test_the_federation_stands_behind_the_learner():
    with pytest.raises(TypeError, match=r"write class Turned\(ClassLearner, FedProx\)$"):
        type("Turned", (FedProx, ClassLearner), {})
