"""FedWeIT in federations against its plain loop, to which they add their part: all of it acts on B, from what B began with."""

import pytest
import torch
from fedweit_loop import DECAY, DENSITY, L1, L2, LAYERS, Plain, weight

from fl_lightning import FedAvg, continual
from fl_lightning.continual import FedWeIT
from fl_lightning.methods import SCAFFOLD, FedDyn, FedGMA, FedNova, FedProx, FedReg

MU, OTHERS = 0.6, 0.7
# Client 2 first comes in round 2; who is not sampled trains too, or not.
COHORTS = [[0, 1], [1, 2], [0, 2], [0, 1, 2], [0, 1, 2], [0, 2]]
BASES = [f"B.{layer}" for layer in LAYERS]


class Prox(Plain):
    """FedProx: ``mu/2 ||B - B_received||^2``."""

    def penalty(self, visit, w):
        return MU / 2 * sum(((w[name] - visit.received[name]) ** 2).sum() for name in BASES)


class Variates(Plain):
    """SCAFFOLD: ``g - c_i + c`` for those sampled; option II with three steps at 0.1."""

    def __init__(self, tiny, *arguments, **settings):
        self.c = {f"B.{layer}": torch.zeros_like(tiny.weights[f"{layer}.weight"]) for layer in LAYERS}
        self.clients_variates, self.changes = {c: dict(self.c) for c in range(3)}, []
        super().__init__(tiny, *arguments, **settings)

    def correct(self, visit, name, gradient):
        if name not in self.c or not visit.sampled:
            return gradient
        return gradient - self.clients_variates[visit.client][name] + self.c[name]

    def after_fit(self, visit, after, compose):
        if not visit.sampled:
            return 0
        old = self.clients_variates[visit.client]
        new = {name: old[name] - c + (visit.received[name] - after[name]) / 0.3 for name, c in self.c.items()}
        self.clients_variates[visit.client] = new
        self.changes.append({name: new[name] - old[name] for name in new})
        return sum(int(change.count_nonzero()) for change in self.changes[-1].values())

    def sent_down(self):
        return sum(int(c.count_nonzero()) for c in self.c.values())

    def after_round(self):
        self.c = {name: c + sum(change[name] for change in self.changes) / 3 for name, c in self.c.items()}
        self.changes = []


class Others(Plain):
    """FedCurv: ``lambda sum_j F_j (B - B_j)^2`` over the other clients of the round before, for those sampled."""

    def __init__(self, *arguments, **settings):
        self.known, self.new = {}, {}
        super().__init__(*arguments, **settings)

    def penalty(self, visit, w):
        others = [self.known[j] for j in self.known if visit.sampled and j != visit.client]
        return OTHERS * sum((F[name] * (w[name] - B[name]) ** 2).sum() for F, B in others for name in BASES)

    def after_fit(self, visit, after, compose):
        """F of single samples, B going into all layers as it does in training."""
        if not visit.sampled:
            return 0
        inputs, targets = self.tiny.samples(visit.client, visit.position, "train")
        leaves = {name: after[name].clone().requires_grad_() for name in BASES}
        fisher = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        for i in range(len(targets)):
            loss = self.tiny.loss(compose({**after, **leaves}), inputs[i : i + 1], targets[i : i + 1])
            for name, gradient in zip(BASES, torch.autograd.grad(loss, list(leaves.values()))):
                fisher[name] += gradient**2 / len(targets)
        self.new[visit.client] = fisher, {name: after[name] for name in BASES}
        # F and F theta: the server, which got a part of B, cannot tell one from the other.
        return sum(int(F.count_nonzero()) + int((F * after[name]).count_nonzero()) for name, F in fisher.items())

    def sent_down(self):
        sums = ((sum(F[n] for F, _ in self.known.values()), sum(F[n] * B[n] for F, B in self.known.values())) for n in BASES)
        return sum(int(total.count_nonzero()) for pair in sums for total in pair) if self.known else 0

    def after_round(self):
        self.known, self.new = self.new, {}


class Contrast(Plain):
    """MOON: features against those of the client's whole model as received, others' tasks in it, and as it last left it."""

    def __init__(self, *arguments, **settings):
        self.previous = {}
        super().__init__(*arguments, **settings)

    @staticmethod
    def features(net, inputs):
        hidden = torch.nn.functional.conv2d(inputs, net["conv.weight"], net["conv.bias"]).tanh().flatten(1)
        return torch.nn.functional.linear(hidden, net["hidden.weight"], net["hidden.bias"]).tanh()

    def of_batch(self, visit, net, inputs):
        nets = (net, visit.net, self.previous.get(visit.client, visit.net))
        z, z_global, z_previous = (self.features(one, inputs) for one in nets)
        near, far = (torch.cosine_similarity(z, other, dim=1) / 0.5 for other in (z_global, z_previous))
        return MU * (torch.logaddexp(near, far) - near).mean()

    def after_fit(self, visit, after, compose):
        self.previous[visit.client] = compose(after)
        return 0


FEDERATIONS = {
    "FedProx": (Prox, {"mu": MU}),
    "SCAFFOLD": (Variates, {}),
    "FedCurv": (Others, {"penalty": OTHERS}),
    "MOON": (Contrast, {"mu": MU}),
}


@pytest.mark.parametrize("train_unsampled", [False, True])
@pytest.mark.parametrize("federation", FEDERATIONS)
def test_all_tasks_equal_both_equations(tiny, federation, train_unsampled):
    """Three tasks: B of the server and of clients, the knowledge base, outputs and bytes."""
    loop, settings = FEDERATIONS[federation]

    class Even(getattr(continual, f"{federation}FedWeIT")):
        """Masks that start close to each other: clients come to choose other outputs than their neighbours."""

        def adapt_net(self):
            super().adapt_net()
            for mask in self.parts(self.net, "mask").values():
                mask.data.mul_(1e-3)

    common = {"l1": L1, "l2": L2, "decay": DECAY, "density": DENSITY, "train_unsampled": train_unsampled}
    method = tiny.train(Even, tiny.new_data(cohorts=COHORTS), **common, **settings)
    masks = {layer: mask.detach() for layer, mask in method.parts(method.net, "mask").items()}
    plain = loop(tiny, masks, COHORTS, train_unsampled=train_unsampled)
    tiny.assert_same({layer: method.net.get_parameter(weight(layer, "base")) for layer in LAYERS}, plain.G)
    tiny.assert_outputs(method, plain.outputs)
    for client, me in enumerate(plain.clients):
        kept = method.client_states.read(client).weights
        tiny.assert_same({layer: kept[weight(layer, "base")] for layer in LAYERS}, me.B)
    known = {(c, t): parts for c, tasks in method.knowledge_base.items() for t, parts in tasks.items()}
    assert known.keys() == plain.kb.keys()
    for entry, parts in known.items():
        dense = {layer: tiny.dense(parts[layer], tiny.weights[f"{layer}.weight"]) for layer in LAYERS}
        tiny.assert_same(dense, plain.kb[entry])
    assert [(report.bytes_down, report.bytes_up) for report in method.seen.rounds] == plain.bytes
    apart = [
        (B - method.client_states.read(c).weights[weight(layer, "base")]).abs().max()
        for c, me in enumerate(Plain(tiny, masks, COHORTS, train_unsampled=train_unsampled).clients)
        for layer, B in me.B.items()
    ]
    assert max(apart) > 1e-4  # the federation's part matters


def test_without_its_term_it_is_fedweit(tiny):
    """FedAvgFedWeIT, and FedProxFedWeIT with mu = 0, bit for bit; what each weighs."""
    expected = tiny.train(FedWeIT, l2=1.0)
    for name, settings in (("FedAvgFedWeIT", {}), ("FedProxFedWeIT", {"mu": 0.0})):
        tiny.assert_same_end(tiny.train(getattr(continual, name), l2=1.0, **settings), expected)


def test_a_class_of_both_is_a_line(tiny):
    """With the arguments of both; B that is not shared leaves FedProx nothing."""

    class Mine(FedWeIT, FedProx): ...

    assert Mine.needs == FedWeIT.needs
    assert tiny.train(Mine, rounds=1, mu=2.0, density=0.5).mu == 2.0
    with pytest.raises(ValueError, match=r"^Mine leaves no weight of model.net to share, as all of them stay with clients"):
        tiny.train(Mine, rounds=1, share_base=False)


class Halved(FedAvg):
    """A server that takes half of each step."""

    def aggregate(self, reduced):
        update = super().aggregate(reduced)
        return update._replace(pseudo_gradient={name: tensor / 2 for name, tensor in update.pseudo_gradient.items()})


class HalvedSCAFFOLD(Halved, SCAFFOLD):
    """What the second base declares is not true of the first."""


class Stepping(FedAvg):
    """Another client step."""

    def client_step(self, net, batch, client):
        return super().client_step(net, batch, client)


class Doubling(FedAvg):
    """Other gradients."""

    def client_gradients(self, net, batch, client):
        gradients, loss = super().client_gradients(net, batch, client)
        return [2 * gradient for gradient in gradients], loss


class DoublingSCAFFOLD(SCAFFOLD):
    """Likewise, where what its base declares need not be true any more."""

    client_gradients = Doubling.client_gradients


@pytest.mark.parametrize("federation", [FedDyn, FedGMA, FedNova, Halved, HalvedSCAFFOLD])
def test_servers_that_work_with_whole_weights_are_refused(federation):
    """When the class is made: clients send a part of B."""
    why = "works at the server with clients' whole weights, of which those of FedWeIT send a part"
    with pytest.raises(TypeError, match=f"^Pair cannot be: {federation.__name__} {why}: use one .* such as SCAFFOLD$"):
        type("Pair", (FedWeIT, federation), {})


@pytest.mark.parametrize(
    ("federation", "hook", "example"),
    [
        (FedReg, "client_step", "FedProx"),
        (Stepping, "client_step", "FedProx"),
        (Doubling, "client_gradients", "SCAFFOLD"),
        (DoublingSCAFFOLD, "client_gradients", "SCAFFOLD"),
    ],
)
def test_steps_without_others_tasks_are_refused(federation, hook, example):
    why = f"overrides {hook}, in which a net of FedWeIT lacks what it takes of other clients' tasks"
    with pytest.raises(TypeError, match=f"^Pair cannot be: {federation.__name__} {why}: use one .* such as {example}$"):
        type("Pair", (FedWeIT, federation), {})


def test_hooks_that_call_the_net_find_the_whole_model(tiny):
    """Other clients' tasks are in it as a visit begins, when it is what was received, and as it ends; states stay."""
    found = []

    class Calling(FedAvg):
        def client_start(self, net, client):
            received = [torch.equal(weight, client.received_state[name]) for name, weight in net.named_parameters()]
            client.state = {**client.state, "started": torch.tensor(client.round)}
            return {**super().client_start(net, client), "received": torch.tensor(received)}

        def client_result(self, net, client):
            client.state = {**client.state, "ended": torch.tensor(client.round)}
            return super().client_result(net, client)

        def probe(self, net, client):
            (batch,) = client.samples()
            assert {"started", "ended"} <= client.state.keys()
            return {**super().probe(net, client), "logits": net(batch.inputs).detach()}

    class Seen(FedWeIT, Calling):
        def probe(self, net, client):
            probe = super().probe(net, client)
            (batch,) = client.samples()
            weights = self.task_weights(net, client, self.positions[client.index])
            tiny.assert_same({"": probe["logits"]}, {"": client.evaluate(weights, lambda net: net(batch.inputs))})
            assert client.carry["received"].all()
            found.append(bool(client.carry["foreign"]))
            return probe

    tiny.train(Seen, l1=0.0)
    assert any(found)


def test_scaffold_takes_its_gradient_of_the_whole_model(tiny):
    """Option I's variate: the gradient by B of the loss on all samples, other clients' tasks in the net."""
    found = {}

    class Seen(FedWeIT, SCAFFOLD):
        def client_start(self, net, client):
            carry = super().client_start(net, client)
            client.carry = carry
            (batch,) = client.samples()
            bases = [self.parts(net, "base")[layer] for layer in LAYERS]
            with torch.enable_grad():
                gradients = torch.autograd.grad(self.client_loss(net, batch, client).mean(), bases)
            names = [weight(layer, "base") for layer in LAYERS]
            found[client.index, client.round] = bool(carry["foreign"])
            tiny.assert_same(carry["full_gradient"], dict(zip(names, gradients)))
            return carry

    tiny.train(Seen, option="I", l2=1.0)
    assert any(found.values())
