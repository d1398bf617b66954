"""Synaptic Intelligence against the path integral of its equations in a plain loop."""

from types import SimpleNamespace

import pytest
import torch
from pairs import Pair

from fl_lightning import FederatedModule
from fl_lightning.methods import SCAFFOLD, FedAvg, FedProx, FedReg, LocalOnly
from fl_lightning.protocol.learner import objective_gradients
from fl_lightning.tasks import SynapticIntelligence, TaskLearner

PENALTY, DAMPING, MU = 3.0, 0.02, 0.3


class Path:
    """What clients' steps come to, one after another; gradients of the penalties, in closed form, are taken out."""

    def __init__(self, tiny, mu: float = 0.0) -> None:
        self.tiny, self.mu = tiny, mu
        self.omega, self.moved, self.learned, self.now = {}, {}, {}, None

    def importance(self, client: int) -> dict:
        """Sum over the tasks that the client has learned, at least 0."""
        total = {name: torch.zeros_like(self.tiny.weights[name]) for name in self.tiny.body}
        for omega, moved, _ in self.learned.get(client, []):
            total = {n: (total[n] + omega[n] / (moved[n] ** 2 + DAMPING)).clamp(min=0) for n in total}
        return total

    def penalty(self, visit, weights):
        """Called once a step, with the weights before it."""
        present = {name: weights[name].detach().clone() for name in self.tiny.body}
        self.finish_step(visit, present)
        self.now = SimpleNamespace(weights=present, gradients={})
        value = self.mu / 2 * sum(((weights[n] - visit.received[n]) ** 2).sum() for n in self.tiny.body)
        if self.learned.get(visit.client):
            omega, theta = self.importance(visit.client), self.learned[visit.client][-1][-1]
            value = value + PENALTY * sum((omega[n] * (weights[n] - theta[n]) ** 2).sum() for n in self.tiny.body)
        return value

    def correct(self, visit, name, gradient):
        """Called once a step and weight, with the gradient of the loss and all penalties, which the optimizer gets as it is."""
        if name in self.tiny.body:
            w = self.now.weights[name]
            own = gradient - self.mu * (w - visit.received[name])
            if self.learned.get(visit.client):
                own = own - 2 * PENALTY * self.importance(visit.client)[name] * (w - self.learned[visit.client][-1][-1][name])
            self.now.gradients[name] = own
        return gradient

    def finish_step(self, visit, weights):
        key = (visit.client, visit.position)
        zeros = {name: torch.zeros_like(self.tiny.weights[name]) for name in self.tiny.body}
        for sums in (self.omega, self.moved):
            sums.setdefault(key, dict(zeros))
        for name in self.tiny.body if self.now else ():
            step = weights[name] - self.now.weights[name]
            self.omega[key][name] = self.omega[key][name] - self.now.gradients[name] * step
            self.moved[key][name] = self.moved[key][name] + step

    def after_fit(self, visit, weights):
        self.finish_step(visit, weights)
        self.now, key = None, (visit.client, visit.position)
        if visit.is_last:
            self.learned.setdefault(visit.client, []).append((self.omega[key], self.moved[key], dict(weights)))


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("kind", [LocalOnly, FedAvg, FedProx])
def test_all_tasks_equal_the_path_integral(tiny, kind, engine):
    """``c sum_i Omega_i (w_i - theta_i)^2`` on the body; theta as the last task ended, FedProx's pull on top.

    ``Omega = sum_j (sum -g dw) / ((sum dw)^2 + xi)`` over earlier tasks, momentum in dw and no penalty in g.
    """
    path = Path(tiny, MU if kind is FedProx else 0.0)
    pair = Pair(kind, SynapticIntelligence)
    settings = {"mu": MU} if kind is FedProx else {}
    expected = tiny.plain(path.penalty, path.correct, path.after_fit, federated=pair.is_federated)
    trained = tiny.train(pair, penalty=PENALTY, damping=DAMPING, engine=engine, **settings)
    tiny.assert_plain(trained, expected)
    tiny.assert_moved(expected.now[0], tiny.body)
    for client in range(3):
        kept = trained.stored.states.read(client).method["tasks"]
        tiny.assert_same(kept["importance"], path.importance(client))
        assert kept.keys() == {"position", "clock", "importance", "reference"}


def test_clients_that_are_sampled_now_and_then(tiny):
    """A task's path ends at the client's last visit in it."""
    path = Path(tiny)
    expected = tiny.plain(path.penalty, path.correct, path.after_fit, cohorts=tiny.cohorts)
    trained = tiny.train(SynapticIntelligence, tiny.new_data(cohorts=tiny.cohorts), penalty=PENALTY, damping=DAMPING)
    tiny.assert_plain(trained, expected)


def test_importances_by_hand(tiny):
    """``1/2 + 2 / (1 + 1)`` and, cut at 0, ``1 - 3 / (1 + 1)``; a task of which the end was lost adds nothing."""
    learner, client = (
        FedAvg(tiny.new_net(), tasks=SynapticIntelligence(damping=1.0)).tasks,
        SimpleNamespace(tasks={}, moments={}),
    )
    earlier = {"importance": {"w": torch.tensor([0.5, 1.0])}}
    came = {"path": {"w": torch.tensor([2.0, -3.0])}, "moved": {"w": torch.tensor([1.0, -1.0])}}
    client.state, client.index = {"tasks": {**earlier, **came}}, 0
    learner.begin_task(tiny.new_net(), client, 1)
    assert client.state["tasks"] == earlier
    client.state["tasks"] |= came
    learner.end_task(tiny.new_net(), client, 1)
    assert client.state["tasks"]["importance"]["w"].tolist() == [1.5, 0.0]
    assert not {"path", "moved"} & client.state["tasks"].keys()


def test_variates_are_not_on_the_path(tiny):
    """SCAFFOLD corrects what the learner has seen: in the first task the weights of both learners are the same."""
    plain, held = (tiny.train(Pair(SCAFFOLD, kind), rounds=2) for kind in (TaskLearner, SynapticIntelligence))
    tiny.assert_same(dict(held.net.named_parameters()), dict(plain.net.named_parameters()), atol=0)


def test_a_method_with_other_steps_is_refused(tiny):
    """FedReg projects its steps: no gradient of a step is there to follow."""
    with pytest.raises(ValueError, match=r"^model.tasks is SynapticIntelligence, but FedReg takes other .*, such as FedAvg$"):
        FedReg(tiny.new_net(), tasks=SynapticIntelligence())
    assert SynapticIntelligence().obstacle_to(FederatedModule) is None


def test_a_method_that_replaces_the_gradients_is_refused(tiny):
    class OwnGradients(FederatedModule):
        def client_gradients(self, net, batch, client):
            return objective_gradients(self, net, batch, client)

    said = "^model.tasks is SynapticIntelligence, but OwnGradients.client_gradients does not call super.*, in which it follows"
    with pytest.raises(ValueError, match=said):
        OwnGradients(tiny.new_net(), tasks=SynapticIntelligence())
    OwnGradients(tiny.new_net(), tasks=TaskLearner())
    SCAFFOLD(tiny.new_net(), tasks=SynapticIntelligence())


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [("penalty", -1.0, "at least 0: 0 holds nothing back"), ("damping", 0.0, "above 0: the authors' code has 0.001")],
)
def test_settings_out_of_range_are_refused(name, value, allowed):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError, match=rf"^model.tasks.{name} is {value}, must be {allowed}$"):
        SynapticIntelligence(**{name: value})
