"""Probes against a plain loop of gradient descent, and under every engine."""

import copy
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fl_lightning import FedAvg, FedPer
from fl_lightning.callbacks import FeatureDrift, ForgettingEvents, HeadByClass, RepresentationSimilarity
from fl_lightning.callbacks.representation_similarity import outputs_by_layer
from fl_lightning.data import from_arrays
from fl_lightning.functional import linear_cka
from fl_lightning.report.log import read_log

RATE, STEPS, CLASSES = 0.3, 4, 3
CLIENTS = [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]  # classes 0 and 1; class 2
PROBES = [HeadByClass, FeatureDrift, RepresentationSimilarity, ForgettingEvents]


class Net(nn.Module):
    """Two layers and a head without names that callbacks could know, but for ``classifier``."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 5)
        self.classifier = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, CLASSES))

    def features(self, inputs):
        return self.classifier[:2](self.second(self.first(inputs).tanh()).tanh())

    def forward(self, inputs):
        return self.classifier[2](self.features(inputs))


def new_net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return Net().double()


def samples(count, seed):
    draws = torch.Generator().manual_seed(seed)
    targets = torch.arange(count) % CLASSES
    return torch.randn(count, 4, generator=draws, dtype=torch.float64) + 2 * F.one_hot(targets, 4), targets


def federation():
    inputs, _ = samples(12, 0)
    targets = torch.tensor([0, 1] * 3 + [2] * 6)
    test, labels = samples(21, 1)
    return from_arrays(
        inputs, targets, CLIENTS, batch_size=None, test_inputs=test, test_targets=labels, classes=list("abc"), monitor_test=1
    )


def in_a_loop(rounds):
    """FedAvg of both clients by hand: the global net before each round, the clients' after, and at last the global one."""
    data, net, history = federation(), new_net(), []
    data.setup()
    inputs, targets = data.train_set.inputs, data.train_set.targets
    for _ in range(rounds):
        locals = []
        for shard in CLIENTS:
            local = copy.deepcopy(net)
            for _ in range(STEPS):
                gradients = torch.autograd.grad(F.cross_entropy(local(inputs[shard]), targets[shard]), list(local.parameters()))
                with torch.no_grad():
                    for weight, gradient in zip(local.parameters(), gradients):
                        weight -= RATE * gradient
            locals.append(local)
        history.append((net, locals))
        net = copy.deepcopy(net)
        with torch.no_grad():
            for weight, *others in zip(net.parameters(), *(local.parameters() for local in locals)):
                weight.copy_(sum(others) / 2)
    return [*history, (net, [])]


@pytest.fixture
def logged(fit, tmp_path, read_scalars):
    """Scalars and tensors of a run, by name and round."""

    def run(*callbacks, engine="sequential", rounds=2):
        method = FedAvg(new_net(), optimizer=lambda w: torch.optim.SGD(w, lr=RATE), local_steps=STEPS, engine=engine)
        folder = tmp_path / engine
        settings = {"precision": "64-true", "logger": True, "default_root_dir": folder}
        trainer = fit(method, federation(), rounds, callbacks=list(callbacks), **settings)
        return read_scalars(trainer.log_dir), read_log(Path(trainer.log_dir)).tensors

    return run


def near(expected):
    return pytest.approx(np.asarray(expected), abs=1e-5)  # logs have float32


def test_head_by_class(logged):
    """Norms, biases and mean logits of both clients in round 2, and their means over classes held and lacked."""
    scalars, tensors = logged(HeadByClass(every=2, samples=21))
    net, locals = in_a_loop(2)[1]
    test, _ = samples(21, 1)
    found = {"norm": [], "bias": [], "logit": []}
    for model in (net, *locals):
        head = model.classifier[2]
        found["norm"].append([float(row.square().sum().sqrt()) for row in head.weight.detach()])
        found["bias"].append(head.bias.tolist())
        found["logit"].append([float(sum(model(x)[c].detach() for x in test) / len(test)) for c in range(CLASSES)])
    for kind, rows in found.items():
        assert tensors[f"head/{kind}"][2] == near(rows)
        (before, one, two) = rows
        held = [one[0] - before[0], one[1] - before[1], two[2] - before[2]]
        absent = [one[2] - before[2], two[0] - before[0], two[1] - before[1]]
        assert scalars[f"head/{kind}_held"] == {2: pytest.approx(sum(held) / 3, abs=1e-6)}
        assert scalars[f"head/{kind}_absent"] == {2: pytest.approx(sum(absent) / 3, abs=1e-6)}
    assert scalars["head/norm_spread"] == {2: pytest.approx(max(found["norm"][0]) / min(found["norm"][0]), abs=1e-5)}
    assert tensors["head/cohort"][2].tolist() == [0, 1]
    assert tensors["head/holds"][2].tolist() == [[1, 1, 0], [0, 0, 1]]


def test_feature_drift(logged):
    """Distances of the means of each class's features, sample by sample."""
    scalars, tensors = logged(FeatureDrift(every=1, samples=21))
    test, labels = samples(21, 1)
    for round, (net, locals) in enumerate(in_a_loop(2)[:2], start=1):
        rows = []
        for local in locals:
            before, after = (
                [sum(model.features(x) for x, y in zip(test, labels) if y == c) / 7 for c in range(CLASSES)]
                for model in (net, local)
            )
            rows.append([float((a - b).norm() / b.norm()) for a, b in zip(after, before)])
        assert tensors["drift/class"][round] == near(rows)
        assert scalars["drift/held"][round] == pytest.approx((rows[0][0] + rows[0][1] + rows[1][2]) / 3, abs=1e-6)
        assert scalars["drift/absent"][round] == pytest.approx((rows[0][2] + rows[1][0] + rows[1][1]) / 3, abs=1e-6)


def by_features(x, y):
    """``||Y'X||^2 / (||X'X|| ||Y'Y||)`` of centred features, as the paper has it."""
    x, y = (z - z.mean(dim=0) for z in (x, y))
    return float((y.T @ x).square().sum() / ((x.T @ x).norm() * (y.T @ y).norm()))


def test_linear_cka_is_that_of_the_features():
    """Wide and narrow representations; dimensions behind the first are flattened."""
    draws = torch.Generator().manual_seed(0)
    x, y = torch.randn(7, 3, 5, generator=draws).double(), torch.randn(7, 2, generator=draws).double()
    assert float(linear_cka(x, y)) == pytest.approx(by_features(x.flatten(1), y), abs=1e-12)
    with pytest.raises(ValueError, match="^linear_cka has 7 and 6 samples"):
        linear_cka(x, y[:6])


def test_representation_similarity(logged):
    """Four linear layers, in the net's order; outputs are taken before the activation."""
    scalars, tensors = logged(RepresentationSimilarity(every=2, samples=21))
    test, _ = samples(21, 1)

    def outputs(model):
        first = model.first(test)
        second = model.second(first.tanh())
        third = model.classifier[0](second.tanh())
        return [first, second, third, model.classifier[2](third.tanh())]

    net, locals = in_a_loop(2)[1]
    rows = [[by_features(*pair) for pair in zip(outputs(net), outputs(local))] for local in locals]
    assert tensors["cka/clients"][2] == near(rows)
    names = ["first", "second", "classifier.0", "classifier.2"]
    for name, column in zip(names, zip(*rows)):
        assert scalars[f"cka/{name}"] == {2: pytest.approx(sum(column) / 2, abs=1e-6)}
        assert f"cka_rounds/{name}" not in scalars


def test_similarity_of_the_global_model_between_measured_rounds(logged):
    """Of the models that rounds 2 and 4 start from; round 2 has none before it."""
    scalars, _ = logged(RepresentationSimilarity(every=2, samples=21), rounds=4)
    test, _ = samples(21, 1)
    started = [net for net, _ in in_a_loop(4)]
    expected = by_features(started[1].first(test), started[3].first(test))
    assert scalars["cka_rounds/first"] == {4: pytest.approx(expected, abs=1e-6)}


def test_forgetting_events(logged):
    """Six rounds, each sample by itself: right after one round and wrong after the next."""
    scalars, tensors = logged(ForgettingEvents(every=1, samples=21), rounds=6)
    test, labels = samples(21, 1)
    nets = [net for net, _ in in_a_loop(6)[1:]]
    right = [[int(net(x).argmax()) == int(y) for net in nets] for x, y in zip(test, labels)]
    counts = [sum(a and not b for a, b in pairwise(row)) for row in right]
    assert tensors["events/counts"][6].tolist() == counts
    assert scalars["events/mean"][6] == pytest.approx(sum(counts) / 21)
    unforgettable = sum(any(row) and not count for row, count in zip(right, counts))
    assert scalars["events/unforgettable"][6] == pytest.approx(unforgettable / 21)
    assert scalars["events/never_learned"][6] == pytest.approx(sum(not any(row) for row in right) / 21)
    for round in range(2, 7):
        lost = [row[round - 2] and not row[round - 1] for row in right]
        shares = [sum(gone for gone, y in zip(lost, labels) if y == c) / 7 for c in range(CLASSES)]
        assert tensors["events/class"][round] == near(shares)


@pytest.mark.parametrize("engine", ["vectorized", pytest.param("captured", marks=pytest.mark.slow)])
def test_every_engine_gives_the_same(logged, engine):
    _, expected = logged(*(probe(every=1) for probe in PROBES))
    _, found = logged(*(probe(every=1) for probe in PROBES), engine=engine)
    names = [name for name in expected if re.match("head|drift|cka|events", name)]
    assert len(names) == 12
    assert names == [name for name in found if name in names]
    for name in names:
        for round, values in expected[name].items():
            assert found[name][round] == near(values), (name, round)


def test_a_run_is_not_changed(fit, logged):
    """The weights are those of a run without probes, bit for bit; what was counted survives a resume."""
    ends = []
    for callbacks in ([], [probe(every=1) for probe in PROBES]):
        method = FedAvg(new_net(), local_steps=STEPS)
        fit(method, federation(), 2, callbacks=callbacks, precision="64-true")
        ends.append(method.net.state_dict())
    assert all(torch.equal(ends[1][name], value) for name, value in ends[0].items())
    old, new = callbacks[-1], ForgettingEvents()
    new.load_state_dict(old.state_dict())
    assert torch.equal(new.state_dict()["counts"], old.state_dict()["counts"])


def test_what_cannot_be_probed_is_refused(fit):
    """One line with the callback and the cure, before round 1."""
    data = from_arrays(*samples(12, 0), CLIENTS, batch_size=None, classes=list("abc"))
    with pytest.raises(ValueError, match=r"^callback HeadByClass measures models on test samples, and data.source has none"):
        fit(FedAvg(new_net()), data, 1, callbacks=[HeadByClass()], precision="64-true")
    with pytest.raises(ValueError, match=r"^callback FeatureDrift needs a net whose last linear layer .* model.net is Wide"):
        fit(FedAvg(Wide()), federation(), 1, callbacks=[FeatureDrift()], precision="64-true")
    with pytest.raises(ValueError, match=r"^callback RepresentationSimilarity compares .* of FedPer do not start: leave"):
        fit(FedPer(new_net()), federation(), 1, callbacks=[RepresentationSimilarity()], precision="64-true")
    with pytest.raises(ValueError, match=r"^trainer.callbacks.samples is 1, must be at least 2"):
        HeadByClass(samples=1)


class Wide(nn.Module):
    """A net whose last linear layer has more rows than there are classes."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(4, 7).double()

    def forward(self, inputs):
        return self.wide(inputs)[:, :3]


def test_similarity_of_a_net_with_attention(fit, tmp_path):
    """The rows of attention's own weights are no layer's output; the layers around it are compared."""

    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
            self.classifier = nn.Linear(4, CLASSES)

        def forward(self, inputs):
            return self.classifier(self.encoder(inputs[:, None])[:, 0])

    settings = {"precision": "64-true", "logger": True, "default_root_dir": tmp_path}
    method = FedAvg(Attends().double(), local_steps=1)
    trainer = fit(method, federation(), 2, callbacks=[RepresentationSimilarity(every=2, samples=21)], **settings)
    assert read_log(Path(trainer.log_dir)).tensors["cka/clients"][2].shape == (2, 3)  # linear1, linear2, classifier


def test_a_net_of_one_layer_has_its_outputs():
    net, inputs = nn.Linear(3, 2), torch.randn(4, 3)
    outputs = outputs_by_layer(net, inputs)
    assert list(outputs) == ["Linear"]
    assert torch.equal(outputs["Linear"], net(inputs))
