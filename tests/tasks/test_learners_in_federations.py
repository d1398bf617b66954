"""Learners of tasks in federations: each pair against one plain loop, to which both add their part."""

import pytest
import torch
from options import NO_PICTURES
from pairs import Pair, pair_of
from torch import Tensor

from fl_lightning.methods import SCAFFOLD, FedAvg, FedCurv
from fl_lightning.protocol import Weighted
from fl_lightning.tasks import APD, EWC, TaskLearner

EARLIER, OTHERS = 5.0, 0.7
RATES = [0.05, 0.03, 0.03]  # of Stable-SGD, as ``max(.1 * .5 ** t, .03)``


class Part:
    """What a learner or a federation adds to :meth:`Tiny.plain`: by default nothing."""

    def __init__(self, tiny, rate, option):
        self.tiny, self.rate, self.option = tiny, rate, option

    def penalty(self, visit, weights) -> Tensor | float:
        return 0.0

    def correct(self, visit, name, gradient) -> Tensor:
        return gradient

    def after_fit(self, visit, weights) -> None:
        pass

    def after_round(self) -> None:
        pass


class Earlier(Part):
    """EWC: ``lambda/2 sum_j F_j (w - theta_j)^2`` over the client's earlier tasks."""

    def __init__(self, *settings):
        super().__init__(*settings)
        self.learned = {}

    def penalty(self, visit, weights):
        earlier = [self.learned[visit.client, j] for j in range(visit.position)]
        return EARLIER / 2 * sum((F[n] * (weights[n] - theta[n]) ** 2).sum() for F, theta in earlier for n in self.tiny.body)

    def after_fit(self, visit, weights):
        if visit.is_last:
            self.learned[visit.client, visit.position] = (self.tiny.fisher(weights, visit.client), dict(weights))


class Variates(Part):
    """SCAFFOLD: ``g - c_i + c``; of three local steps, or of all samples at the weights received."""

    def __init__(self, *settings):
        super().__init__(*settings)
        self.c = {name: torch.zeros_like(self.tiny.weights[name]) for name in self.tiny.body}
        self.client_variates, self.changes = {client: dict(self.c) for client in range(3)}, []

    def correct(self, visit, name, gradient):
        return gradient - self.client_variates[visit.client][name] + self.c[name] if name in self.c else gradient

    def after_fit(self, visit, weights):
        old = self.client_variates[visit.client]
        if self.option == "I":
            leaves = {name: weight.clone().requires_grad_() for name, weight in visit.received.items()}
            loss = self.tiny.loss(leaves, *self.tiny.samples(visit.client, visit.position, "train"))
            new = dict(zip(self.c, torch.autograd.grad(loss, [leaves[name] for name in self.c])))
        else:
            length = (1.75 + 1.5 + 1) * self.rate(visit.position)  # how often the gradients count, with momentum 0.5
            new = {n: old[n] - c + (visit.received[n] - weights[n]) / length for n, c in self.c.items()}
        self.changes.append({name: new[name] - old[name] for name in new})
        self.client_variates[visit.client] = new

    def after_round(self):
        self.c = {name: c + sum(change[name] for change in self.changes) / 3 for name, c in self.c.items()}
        self.changes = []


class Others(Part):
    """FedCurv: ``lambda sum_j F_j (w - theta_j)^2`` over the other clients in the round before."""

    def __init__(self, *settings):
        super().__init__(*settings)
        self.known, self.new = {}, {}

    def penalty(self, visit, weights):
        others = [self.known[j] for j in self.known if j != visit.client]
        return OTHERS * sum((F[n] * (weights[n] - theta[n]) ** 2).sum() for F, theta in others for n in self.tiny.body)

    def after_fit(self, visit, weights):
        self.new[visit.client] = (self.tiny.fisher(weights, visit.client), dict(weights))

    def after_round(self):
        self.known, self.new = self.new, {}


FEDERATIONS = {
    "SCAFFOLD": (Variates, {}),
    "SCAFFOLD I": (Variates, {"option": "I"}),
    "FedCurv": (Others, {"penalty_of_method": OTHERS}),
}
LEARNERS = {
    "EWC": (Earlier, {"penalty": EARLIER}),
    "StableSGD": (Part, {"task_decay": 0.5, "lowest_rate": 0.03}),
}


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("federation", FEDERATIONS)
def test_both_parts_add_up(tiny, federation, learner):
    """All of three tasks: server, clients, what they keep, outputs, and what the server of SCAFFOLD and FedCurv has on top."""
    (above, sent), (below, local) = FEDERATIONS[federation], LEARNERS[learner]
    settings = {**sent, **local}

    def rate(position):
        return RATES[position] if learner == "StableSGD" else 0.1

    parts = [kind(tiny, rate, sent.get("option", "II")) for kind in (above, below)]

    def after_round():
        for part in parts:
            part.after_round()

    def after_fit(visit, weights):
        for part in parts:
            part.after_fit(visit, weights)

    expected = tiny.plain(
        lambda visit, weights: sum(part.penalty(visit, weights) for part in parts),
        lambda visit, name, gradient: parts[0].correct(visit, name, gradient),
        after_fit,
        after_round,
        rate=rate,
    )
    method = tiny.train(pair_of(f"{federation.split()[0]} {learner}"), **settings)
    tiny.assert_plain(method, expected)
    tiny.assert_moved(expected.server, tiny.body)
    if above is Variates:
        tiny.assert_same(method.server_states.tensors("variate"), parts[0].c)
    if above is Others:
        fisher = {name: sum(F[name] for F, _ in parts[0].known.values()) for name in tiny.body}
        tiny.assert_same(method.server_states.tensors("fisher"), fisher)


def test_decomposed_weights_have_variates_of_their_bases(tiny):
    """SCAFFOLD with APD: two tasks and a round; where the rest is decomposed away, variates are not those of FedAvg."""
    for option in ("I", "II"):
        method = tiny.train(Pair(SCAFFOLD, APD), rounds=5, option=option, l2=1.0)
        bases = {f"{layer}.parametrizations.weight.original" for layer in ("conv", "hidden")}
        assert method.server_states.tensors("variate").keys() == bases
        variates = [method.stored.states.read(client).method["variate"] for client in range(3)]
        for name, c in method.server_states.tensors("variate").items():  # all of them take part in every round
            torch.testing.assert_close(c, sum(variate[name] for variate in variates) / 3, atol=1e-12, rtol=0)
        apart = method.net.get_parameter("conv.parametrizations.weight.original")
        plain = tiny.train(APD, rounds=5, l2=1.0).net.get_parameter("conv.parametrizations.weight.original")
        assert (apart - plain).abs().max() > 1e-4


def test_without_their_terms_they_are_what_is_left(tiny):
    """FedCurv adds nothing to APD or EWC without a penalty, nor EWC to FedCurv, bit for bit; with one it does."""
    apd, ewc, curv = {"l2": 1.0, "l1": 0.02}, {"penalty": EARLIER}, {"penalty_of_method": OTHERS}
    for learner, settings, penalty, plain in (
        (APD, apd, "penalty_of_method", (FedAvg, APD, apd)),
        (EWC, ewc, "penalty_of_method", (FedAvg, EWC, ewc)),
        (EWC, curv, "penalty", (FedCurv, TaskLearner, curv)),
    ):
        expected = dict(tiny.train(Pair(*plain[:2]), **plain[2]).net.named_parameters())
        bare, full = (tiny.train(Pair(FedCurv, learner), **settings, **{penalty: value}) for value in (0.0, 50.0))
        tiny.assert_same(dict(bare.net.named_parameters()), expected, atol=0)
        assert any((weight - expected[name]).abs().max() > 1e-4 for name, weight in full.net.named_parameters())


@pytest.mark.parametrize("config", ["digits_tce.yaml", "digits_fedweit.yaml"])
@pytest.mark.parametrize("given", ["EWC", "LwF", "fl_lightning.tasks.TaskLearner"])
def test_a_learner_given_as_a_method_is_refused(main, config, given):
    """Whether the config has other tasks or none, in one line."""
    code, _, error = main("fit", "--config", config, "--model.net", "MLP", "--model", given)
    assert code != 0
    line = f"model is {given}, which is a learner of tasks, not a method: give --model.tasks {given.rpartition('.')[2]}"
    assert error.strip() == f"fl-lightning: error: {line}"


def test_a_method_of_the_users_may_have_a_learners_name(main, tmp_path):
    (tmp_path / "mine.py").write_text("from fl_lightning import FedAvg\n\nclass Replay(FedAvg): ...\n")
    code, out, error = main("fit", "--config", "digits_tce.yaml", "--model", "mine.Replay", "--print_config")
    assert code == 0, error
    assert "class_path: mine.Replay" in out


@pytest.mark.parametrize("name", ["FedCurv EWC", "SCAFFOLD APD", "SCAFFOLD TaskLearner", "FedDyn EWC"])
@pytest.mark.one_in(2)
def test_on_the_command_line(main, tmp_path, name):
    """Two tasks of a round each by short name, then on from the checkpoint by the path in config.yaml."""
    method, learner = name.split()
    small = "--model.net MLP --model.net.hidden [16] --trainer.enable_progress_bar false".split()
    fit = ["fit", "--config", "digits_fedweit.yaml", *small, *NO_PICTURES]
    short = "--model.tasks.rounds_per_task 1 --data.batch_size 60 --callbacks.task_accuracy.every 0".split()
    short += ["--callbacks.task_attention.every", "0"]
    penalties = ["--model.tasks.penalty", "2", "--model.penalty", "0.5"] if name == "FedCurv EWC" else []
    code, _, error = main(*fit, "--model", method, "--model.tasks", learner, *short, *penalties, "--trainer.max_steps", "2")
    assert code == 0, error
    (config,) = tmp_path.glob("runs/*/version_0/config.yaml")
    text = config.read_text()
    assert f"class_path: fl_lightning.tasks.{learner}\n" in text
    assert not penalties or text.count("penalty: 2") == text.count("penalty: 0.5") == 1
    code, _, error = main("fit", "--config", str(config), "--ckpt_path", "last", "--trainer.max_steps", "3")
    assert code == 0, error


class Remembers(FedAvg):
    """Keeps the number of its visits under a name that learners use too."""

    def client_start(self, net, client):
        client.state.setdefault("position", torch.tensor(7.0))
        return super().client_start(net, client)

    def client_result(self, net, client):
        client.state["clock"] = client.state.get("clock", torch.tensor(0.0)) + 1
        return super().client_result(net, client)


def test_a_method_and_its_learner_may_keep_the_same_names(tiny):
    """What a method keeps does not change what its learner learns."""
    expected = tiny.train(TaskLearner, rounds=4)
    method = tiny.train(Pair(Remembers, TaskLearner), rounds=4)
    tiny.assert_same(dict(method.net.named_parameters()), dict(expected.net.named_parameters()), atol=0)
    kept = method.stored.states.read(0).method
    assert (float(kept["position"]), float(kept["clock"])) == (7.0, 4.0)
    assert kept["tasks"].keys() == {"position", "clock"}


class Carries(FedAvg):
    def client_start(self, net, client):
        return {"position": torch.zeros(1)}


class SendsUp(FedAvg):
    def client_result(self, net, client):
        return {**super().client_result(net, client), "task_fisher": Weighted({}, 1.0)}


class Learns(TaskLearner):
    def begin_visit(self, net, client):
        return {**super().begin_visit(net, client), "position": torch.zeros(1)}

    def upload(self, net, client):
        return {**super().upload(net, client), "task_fisher": Weighted({}, 1.0)}


@pytest.mark.parametrize(
    ("method", "said"), [(Carries, "'position' in their carry"), (SendsUp, "'task_fisher' in their upload")]
)
def test_a_name_that_both_send_or_carry_is_refused(tiny, method, said):
    """One would silently replace the other."""
    with pytest.raises(ValueError, match=f"^{method.__name__} and its learner of tasks, Learns, both have {said}: rename one"):
        tiny.train(Pair(method, Learns), rounds=1)
