"""All engines give the same results: every public method and one method for every hook, over nets, data and optimizers."""

import copy
import importlib.util
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from declared_by_tests import needs_of, needs_without_net
from older_torch import COMPILED_ATTENTION_DROPOUT, STACKED_FIXED_GROUP_NORM
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from fl_lightning import FedAvg, FederatedModule, Needs, methods
from fl_lightning.callbacks import FederatedCallback
from fl_lightning.data import IID, ClientSampler, FederatedDataModule, RandomCrop, RandomHorizontalFlip, from_arrays
from fl_lightning.engines import engine_choice, engine_timing, vectorized
from fl_lightning.engines.engine_choice import choose_engine
from fl_lightning.engines.local_step import ELEMENTWISE, LocalStep
from fl_lightning.engines.ranks import OneProcess
from fl_lightning.engines.run_context import RunContext
from fl_lightning.functional.random_streams import stream_seed
from fl_lightning.losses import TruncatedCrossEntropy
from fl_lightning.models import MLP
from fl_lightning.protocol import Visit, Weighted, pack
from fl_lightning.protocol.client import mean_gradient

SHAPE, CLASSES = (2, 6, 6), ["ant", "bee", "cat", "dog"]


# Nets: all have ``features`` and a ``classifier`` ---------------------------------------------------------------------


class Net(nn.Module):
    """Features, then a linear classifier."""

    def __init__(self, width: int, *layers: nn.Module) -> None:
        super().__init__()
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.classifier = nn.Linear(width, len(CLASSES))

    def forward(self, images):
        return self.classifier(self.features(images))


def mlp(shape, classes):
    return MLP(shape, classes, hidden=(7,))


def conv_net(shape, classes):
    return Net(3 * 9, nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))


def deep_conv_net(shape, classes):
    return Net(3 * 9, nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 3, 5, padding=2))


def group_norm_net(shape, classes):
    return Net(4 * 36, nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU())


def batch_norm_net(shape, classes):
    # A bias before BatchNorm has a gradient of rounding errors alone, which Adam would make large.
    return Net(3 * 36, nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), nn.ReLU())


def batch_norm_mlp(shape, classes):
    return Net(7, nn.Flatten(), nn.Linear(72, 7, bias=False), nn.BatchNorm1d(7, momentum=0.3), nn.ReLU())


def frozen_net(shape, classes):
    """The convolution is not trained; its BatchNorm counts all the same."""
    net = batch_norm_net(shape, classes)
    net.features[0].requires_grad_(False)
    return net


def dropout_net(shape, classes):
    return Net(7, nn.Flatten(), nn.Linear(72, 7), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.2))


def dropped_channels_net(shape, classes):
    return Net(3 * 36, nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Dropout2d(0.4))


def batch_norm_dropout_net(shape, classes):
    return Net(3 * 36, nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.3))


class Rows(nn.Module):
    """A transformer on the rows of an image as tokens, (B, 6, 12), or (6, B, 12) as is torch's default."""

    def __init__(self, batch_first):
        super().__init__()
        self.batch_first = batch_first
        self.encoder = nn.TransformerEncoderLayer(12, 2, 8, dropout=0.3, batch_first=batch_first)

    def forward(self, images):
        tokens = images.movedim(1, 2).flatten(2)
        return self.encoder(tokens) if self.batch_first else self.encoder(tokens.movedim(0, 1)).movedim(0, 1)


def attention_net(shape, classes):
    return Net(72, Rows(batch_first=True))


def rows_first_attention_net(shape, classes):
    return Net(72, Rows(batch_first=False))


# Data: five clients, the first four in round 1, the last four in round 2 ----------------------------------------------

COHORTS = [[0, 1, 2, 3], [1, 2, 3, 4]]
FEW = [[1, 2], [2]]  # for the captured engine, which traces each kind of visit


def federation(sizes, batch_size, dtype=torch.float64, cohorts=COHORTS, **settings):
    generator = torch.Generator().manual_seed(3)
    count = sum(sizes) + 8  # of which 8 are for tests
    targets = torch.randint(0, len(CLASSES), (count,), generator=generator)
    inputs = torch.randn(count, *SHAPE, generator=generator, dtype=torch.float64) + 0.3 * targets[:, None, None, None]
    inputs = (inputs * 40 + 100 if dtype == torch.uint8 else inputs).to(dtype)
    clients = [part.tolist() for part in torch.arange(sum(sizes)).split(sizes)]
    test = {"test_inputs": inputs[-8:], "test_targets": targets[-8:], "classes": CLASSES, "monitor_test": 0}
    return from_arrays(inputs[:-8], targets[:-8], clients, batch_size=batch_size, cohorts=cohorts, **test, **settings)


def equal(**settings):
    """Five steps of 3 samples at every client: an epoch is 2 of them."""
    return federation([6] * 5, 3, **settings), {"local_steps": 5}


def ragged(**settings):
    """Two epochs: 2, 2, 4, 6 and 6 steps; batches of 1, 4, 3, 4 and 1 samples at the ends, client 0 has a single sample."""
    return federation([1, 4, 7, 12, 9], 4, **settings), {"local_epochs": 2}


def ragged_pairs(**settings):
    """Two epochs, no batch of fewer than 2 samples, which BatchNorm cannot take; clients 1 and 4 look alike."""
    return federation([4, 6, 8, 12, 6], 4, **settings), {"local_epochs": 2}


def whole_shards(**settings):
    """Every client's shard is one batch, of 2 to 9 samples."""
    return federation([2, 4, 7, 9, 7], None, **settings), {"local_steps": 3}


def one_step(**settings):
    """One step on the whole shard."""
    return federation([2, 4, 7, 9, 7], None, **settings), {}


def public(**settings):
    """Twelve samples for the server; one step more than an epoch."""
    data, _ = equal()
    settings |= {
        "partition": IID(),
        "public_size": 12,
        "num_clients": 5,
        "batch_size": 2,
        "monitor_test": 0,
        "val_fraction": 0.0,
    }
    return FederatedDataModule(data.source, cohorts=COHORTS, **settings), {"local_steps": 3}


def validated(**settings):
    """Every client keeps half of its 4 to 18 samples for validation: 2, 4, 7, 9 and 3 samples in batches of 4."""
    return federation([4, 8, 14, 18, 6], 4, val_fraction=0.5, **settings), {"local_epochs": 2}


def augmented(**settings):
    """Ragged shards of uint8 images, cropped and mirrored at random."""
    changes = (RandomCrop(1), RandomHorizontalFlip())
    return federation([2, 4, 7, 12, 6], 4, dtype=torch.uint8, augment=changes, **settings), {"local_epochs": 2}


# Local optimizers -----------------------------------------------------------------------------------------------------


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


# Methods: together they override every hook of a client ---------------------------------------------------------------


def documented_scaffold():
    """SCAFFOLD as docs/adding_a_method.md has it: server state, client state, a broadcast and another upload."""
    text = (Path(__file__).parents[2] / "docs" / "adding_a_method.md").read_text()
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "class MySCAFFOLD" in block)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("documented_scaffold", loader=None))
    exec(compile(code, "docs/adding_a_method.md", "exec"), module.__dict__)
    return module.MySCAFFOLD


SCAFFOLD = documented_scaffold()


class Proximal(FedAvg):
    """A penalty: the pull of FedProx."""

    def client_penalty(self, net, client):
        moved = zip(net.parameters(), client.received, strict=True)
        return 0.3 * torch.stack([(weight - received).square().sum() for weight, received in moved]).sum()


class CustomStep(FedAvg):
    """Another local step, which clips each weight by itself and counts steps in the client's state."""

    def client_step(self, net, batch, client):
        gradients, loss = self.client_gradients(net, batch, client)
        client.apply([gradient * (0.05 / (gradient.norm() + 1e-6)).clamp_max(1.0) for gradient in gradients])
        client.state["steps"] = client.state.get("steps", torch.zeros_like(loss)) + 1
        client.state["loss"] = loss
        return loss


class Contrastive(FedAvg):
    """The contrast of MOON: features near those of the received model, away from those of the client's previous one."""

    def client_start(self, net, client):
        received = {f"received.{name}": weight.detach().clone() for name, weight in net.features.named_parameters()}
        previous = {name: client.state.get(name, received[f"received.{name}"]) for name, _ in net.features.named_parameters()}
        return {**received, **{f"previous.{name}": weight for name, weight in previous.items()}}

    def client_loss(self, net, batch, client):
        def features_of(model):
            prefix = f"{model}."
            weights = {name.removeprefix(prefix): t for name, t in client.carry.items() if name.startswith(prefix)}
            return functional_call(net.features, weights, batch.inputs)

        present = net.features(batch.inputs)
        near, far = (F.cosine_similarity(present, features_of(model), dim=1) for model in ("received", "previous"))
        contrast = -torch.stack([near, far]).div(0.5).log_softmax(dim=0)[0]
        return super().client_loss(net, batch, client) + contrast

    def client_result(self, net, client):
        client.state.update({name: weight.detach().clone() for name, weight in net.features.named_parameters()})
        return super().client_result(net, client)


class Curvature(FedAvg):
    """As in FedCurv: clients send the squared gradients of each of their batches, which pull in the next round."""

    def configure_model(self):
        super().configure_model()
        trained = [weight for weight in self.net.parameters() if weight.requires_grad]
        for index, weight in enumerate(trained):
            self.register_buffer(f"fisher_{index}", torch.zeros_like(weight))

    def broadcast(self, client):
        return dict(self.named_buffers(recurse=False))

    def client_penalty(self, net, client):
        pulls = [
            (client.broadcast[f"fisher_{index}"] * (weight - received).square()).sum()
            for index, (weight, received) in enumerate(zip(net.parameters(), client.received, strict=True))
        ]
        return 0.1 * torch.stack(pulls).sum()

    def client_result(self, net, client):
        fisher, count = {}, 0
        for batch in client.batches():

            def objective(batch=batch):
                loss = batch.mean(self.client_loss(net, batch, client))
                return loss, loss

            gradients, _ = client.differentiate(objective)
            count += len(batch.targets)
            for index, gradient in enumerate(gradients):
                fisher[f"fisher_{index}"] = fisher.get(f"fisher_{index}", 0) + gradient.square() * len(batch.targets)
        means = {name: value / count for name, value in fisher.items()}
        client.state.update({f"personal_{name}": value.clone() for name, value in means.items()})
        return {**super().client_result(net, client), "fisher": Weighted(means, 1.0)}

    def aggregate(self, reduced):
        for name, mean in reduced.mean("fisher").items():
            self.get_buffer(name).copy_(mean)
        return super().aggregate(reduced)


class Probing(FedAvg):
    """The server reads something off every model, with a draw, and keeps its sum."""

    def configure_model(self):
        super().configure_model()
        self.register_buffer("seen", torch.zeros(len(CLASSES)))

    def probe(self, net, client):
        weight = net.classifier.weight.detach()
        return {"largest": weight.amax(dim=1), "drawn": torch.rand(2) + client.index}

    def after_server_step(self, probes):
        self.seen += torch.stack([probe["largest"] * probe["drawn"][0] for probe in probes]).sum(dim=0)


class PersonalHead(FedAvg):
    personal = ("classifier.*",)


class PersonalNorm(FedAvg):
    """As in FedBN: weights, statistics and counter of the BatchNorm layer stay with the client."""

    personal = ("features.1.*",)

    def client_loss(self, net, batch, client):
        return super().client_loss(net, batch, client) * (1 + client.round)


class Gossip(FedAvg):
    """Clients that do not receive, at their first visit and later, and some that do not send."""

    needs = Needs(client_weights=True)

    def cohort(self, round):
        if round == 1:
            return [Visit(0), Visit(1), Visit(2, sends=False), Visit(4, receives=False)]
        return [Visit(0), Visit(1, receives=False), Visit(2, receives=False, sends=False), Visit(3, sends=False), Visit(4)]


class PullingGossip(Gossip, Proximal):
    """The pull is towards what each client starts from: its personal weights where it does not receive."""


class ClientRates(FedAvg):
    """Two rates within each round, another in the next."""

    def client_learning_rate(self, round, client):
        return 0.5**round * (1 + client % 2)


class TwoGradients(FedAvg):
    """Two gradients a step: BatchNorm counts both."""

    def client_gradients(self, net, batch, client):
        first, loss = super().client_gradients(net, batch, client)
        second, _ = super().client_gradients(net, batch, client)
        return [(a + 2 * b) / 3 for a, b in zip(first, second, strict=True)], loss


class WellInformed(FedAvg):
    """A loss of everything that a local step may know of its client."""

    def client_loss(self, net, batch, client):
        loss = super().client_loss(net, batch, client)
        scale = client.learning_rate * (1 + client.index) / (client.num_steps + client.round)
        share = client.train_label_counts / client.num_train - client.label_counts / client.label_counts.sum()
        return loss * (1 + scale) + share[batch.targets] + 0.1 * client.train_label_counts[batch.targets]


BOTH = ("vectorized", "captured")


class Case(NamedTuple):
    method: type[FederatedModule]
    net: Callable
    data: Callable
    optimizer: Callable
    settings: dict[str, Any] = {}
    engines: tuple[str, ...] = ("vectorized",)  # compared with sequential; tracing a captured step takes a second or more


def public_methods():
    found = [getattr(methods, name) for name in methods.__all__]
    return [method for method in found if isinstance(method, type) and issubclass(method, FederatedModule)]


def public_case(method):
    """BatchNorm, momentum and ragged shards, where the method takes them. The table of combinations has compiled steps too."""
    (of_data, with_norm), (_, settings) = needs_of(method.__name__), needs_without_net(method.__name__)
    if not with_norm.get("norm", True):
        return Case(method, group_norm_net, augmented, sgd, settings)
    if "public_size" in of_data:  # in batches of two samples, whose BatchNorm magnifies rounding
        return Case(method, batch_norm_net, public, sgd, settings)
    return Case(method, batch_norm_mlp, one_step if "batch_size" in of_data else ragged_pairs, momentum, settings)


PUBLIC_CASES = [public_case(method) for method in public_methods()]
UNIFORM = {"server_weighting": "uniform"}
HOOK_CASES = [
    Case(FedAvg, conv_net, augmented, adam, UNIFORM),
    Case(FedAvg, group_norm_net, ragged, momentum, {"loss": TruncatedCrossEntropy(), "clip_local_gradients": 0.2}, BOTH),
    Case(FedAvg, frozen_net, whole_shards, momentum, {}, BOTH),
    Case(Proximal, batch_norm_mlp, ragged_pairs, adam, {}, BOTH),
    Case(SCAFFOLD, mlp, ragged, sgd, {}, BOTH),
    Case(SCAFFOLD, batch_norm_net, equal, sgd, UNIFORM),
    Case(CustomStep, batch_norm_mlp, equal, momentum, {}, BOTH),
    Case(CustomStep, mlp, ragged, adam),
    Case(Contrastive, mlp, whole_shards, momentum),
    Case(Contrastive, group_norm_net, ragged, sgd, {}, BOTH),
    Case(Curvature, mlp, augmented, sgd, {}, BOTH),
    Case(Curvature, batch_norm_mlp, ragged_pairs, momentum),
    Case(Probing, conv_net, ragged, momentum, {}, BOTH),
    Case(PersonalHead, mlp, augmented, momentum),
    Case(PersonalNorm, batch_norm_net, equal, adam, {}, BOTH),
    Case(PullingGossip, mlp, ragged, adam, {}, BOTH),
    Case(Gossip, batch_norm_net, whole_shards, sgd),
    Case(ClientRates, mlp, ragged, momentum),
    Case(ClientRates, conv_net, equal, adam, UNIFORM, BOTH),
    Case(TwoGradients, batch_norm_mlp, whole_shards, sgd),
    Case(TwoGradients, batch_norm_mlp, ragged_pairs, momentum),
    Case(WellInformed, mlp, validated, adam, {}, BOTH),
    Case(WellInformed, group_norm_net, whole_shards, sgd, UNIFORM),
    Case(FedAvg, dropout_net, ragged, momentum, {}, BOTH),
    Case(FedAvg, attention_net, ragged, adam, {}, BOTH),
    Case(FedAvg, rows_first_attention_net, ragged, adam),
    Case(Proximal, dropped_channels_net, augmented, sgd),
    Case(Contrastive, dropout_net, ragged, sgd),
    Case(TwoGradients, batch_norm_dropout_net, ragged_pairs, momentum, {}, BOTH),
]


# Of cases that begin so.
OLDER_TORCH = {
    (Contrastive, group_norm_net): STACKED_FIXED_GROUP_NORM,
    (FedAvg, attention_net): COMPILED_ATTENTION_DROPOUT,
}


def name_of(case):
    return "-".join(part.__name__ for part in case[:4])


# A run and what it leaves behind --------------------------------------------------------------------------------------


class Watch(FederatedCallback):
    """Keeps what a round reports and what the clients' models say of the test inputs."""

    def __init__(self):
        super().__init__(every=1)
        self.reports, self.predictions = [], []

    def wants_models(self, round):
        return True

    def on_cohort_fit_end(self, trainer, module, round, models):
        self.predictions.append(models.predict(module.data.evaluation.test_inputs()))

    def on_round_end(self, trainer, module, round, report):
        self.reports.append(dict(vars(report)))


def run(fit, case, engine, rounds=2, precision="64-true", callbacks=(), of_data=MappingProxyType({}), **settings):
    """Two rounds; everything that is to be the same under every engine, by name."""
    data, steps = case.data(**of_data)
    method = case.method(case.net, optimizer=case.optimizer, engine=engine, **{**steps, **case.settings})
    probes, after_server_step, watch = [], method.after_server_step, Watch()

    def note(seen):
        probes.append(seen)
        after_server_step(seen)

    method.after_server_step = note
    fit(method, data, rounds, precision=precision, callbacks=[watch, *callbacks], **settings)
    return {
        "weights": dict(method.net.named_parameters()),
        "buffers": dict(method.named_buffers()),
        "states": {client: pack(method.stored.states.read(client)) for client in range(data.num_clients)},
        "reports": watch.reports,
        "predictions": watch.predictions,
        "probes": probes,
    }


def assert_same(actual, expected, atol, name=""):
    """Equal piece by piece: tensors of floats and floats within ``atol``, everything else exactly."""
    if isinstance(expected, torch.Tensor):
        assert actual.shape == expected.shape, name
        assert actual.dtype == expected.dtype, name
        tolerance = atol if expected.is_floating_point() else 0
        torch.testing.assert_close(
            actual.detach(), expected.detach(), atol=tolerance, rtol=tolerance, msg=lambda text: f"{name}: {text}"
        )
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys(), name
        for key in expected:
            assert_same(actual[key], expected[key], atol, f"{name}/{key}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), name
        for index, pair in enumerate(zip(actual, expected)):
            assert_same(*pair, atol, f"{name}/{index}")
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, abs=atol, rel=atol), name
    else:
        assert actual == expected, name


def assert_engines_agree(fit, case, atol=1e-10, **settings):
    for engine in case.engines:
        of_data = {"cohorts": FEW} if engine == "captured" else {}
        expected = run(fit, case, "sequential", of_data=of_data, **settings)
        assert all(value.isfinite().all() for value in expected["weights"].values())
        assert_same(run(fit, case, engine, of_data=of_data, **settings), expected, atol, engine)


@pytest.mark.parametrize("case", PUBLIC_CASES, ids=name_of)
@pytest.mark.one_in(4)
def test_public_methods_give_the_same_under_every_engine(fit, case):
    """Two rounds in float64: weights, buffers, states, reports, probes and predictions to 1e-10, integers exactly."""
    assert_engines_agree(fit, case)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[mark for part, mark in OLDER_TORCH.items() if case[: len(part)] == part])
        for case in HOOK_CASES
    ],
    ids=name_of,
)
@pytest.mark.one_in(4)
def test_every_hook_gives_the_same_under_every_engine(fit, case):
    """As above, for methods that override each of a client's hooks."""
    assert_engines_agree(fit, case)


def optimizer_named(name, **settings):
    def build(parameters):
        return getattr(torch.optim, name)(parameters, **settings)

    build.__name__ = name
    return build


@pytest.mark.parametrize(
    "optimizer",
    [
        *(optimizer_named(optimizer.__name__) for optimizer in ELEMENTWISE),
        optimizer_named("SGD", momentum=0.9, nesterov=True, dampening=0.0, maximize=True),
        optimizer_named("Adam", amsgrad=True, weight_decay=0.1),
        optimizer_named("RMSprop", momentum=0.5, centered=True),
        optimizer_named("Adagrad", initial_accumulator_value=0.5, lr_decay=0.1),
        optimizer_named("Adam", foreach=True),
        optimizer_named("SGD", foreach=False, momentum=0.5),
    ],
    ids=lambda optimizer: optimizer.__name__,
)
@pytest.mark.one_in(3)
def test_every_optimizer_that_is_stacked_steps_as_it_does_alone(fit, optimizer):
    """Ragged shards, so that stacks shrink with moments in them; two rates, each in a separate stack."""
    assert_engines_agree(fit, Case(ClientRates, mlp, ragged, optimizer))


def test_engines_agree_in_float32(fit):
    """To 1e-5, after two rounds of a few steps."""
    assert_engines_agree(fit, Case(SCAFFOLD, conv_net, ragged, sgd, {}, BOTH), atol=1e-5, precision="32-true")


@pytest.mark.slow
@pytest.mark.compiled
def test_compiled_steps_give_the_same(fit):
    """The captured engine with a compiler: whole visits, buffers, a client's state, multiples that are added to gradients, of
    which torch 2.14 forgets the factor, and batches that are filled up.
    """
    assert_engines_agree(fit, Case(SCAFFOLD, batch_norm_mlp, equal, sgd, {}, ("captured",)))
    assert_engines_agree(fit, Case(methods.FedDyn, mlp, equal, sgd, {}, ("captured",)))
    assert_engines_agree(fit, Case(CustomStep, mlp, ragged, momentum, {"learning_rate_decay": 0.5}, ("captured",)))


# Against a plain loop -------------------------------------------------------------------------------------------------


def plain_visit(splitmix64, net, data, client, round, batch_size, epochs, optimizer):
    """One client's fit on a copy; returns the trained net and the mean loss."""
    local = copy.deepcopy(net).train()
    stepper, losses = optimizer(local.parameters()), []
    indices, key = data.shards.train_indices(client), stream_seed(data.seed, round, client, "batch order")
    for epoch in range(epochs):
        drawn = [splitmix64(key, (epoch << 32) + position) >> 1 for position in range(len(indices))]
        order = sorted(range(len(indices)), key=drawn.__getitem__)
        for first in range(0, len(indices), batch_size):
            chosen = indices[order[first : first + batch_size]]
            stepper.zero_grad()
            loss = F.cross_entropy(local(data.train_set.inputs[chosen]), data.train_set.targets[chosen])
            loss.backward()
            stepper.step()
            losses.append(loss.item())
    return local, sum(losses) / len(losses)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("net", [batch_norm_net, batch_norm_mlp, group_norm_net])
def test_rounds_equal_a_plain_loop(fit, splitmix64, engine, net):
    """Momentum, weight decay, two epochs of ragged shards and BatchNorm, weights, buffers and losses to 1e-12 in float64.

    Counters of batches are averaged and truncated: sum_k n_k * count_k / sum_k n_k.
    """
    start = Start()
    actual = run(fit, Case(FedAvg, net, ragged_pairs, momentum), engine, callbacks=[start])
    plain, (data, _) = start.net, ragged_pairs()
    data.setup()
    for round, cohort in enumerate(COHORTS, start=1):
        fits = [plain_visit(splitmix64, plain, data, client, round, 4, 2, momentum) for client in cohort]
        assert actual["reports"][round - 1]["losses"] == pytest.approx([loss for _, loss in fits], abs=1e-12)
        weights = torch.tensor([float(data.num_train(client)) for client in cohort], dtype=torch.float64)
        for name, value in plain.state_dict().items():
            states = torch.stack([local.state_dict()[name].double() for local, _ in fits])
            value.copy_(torch.tensordot(weights, states, dims=1) / weights.sum())
    for name, value in plain.state_dict().items():
        found = {**actual["weights"], **{name.removeprefix("net."): t for name, t in actual["buffers"].items()}}[name]
        torch.testing.assert_close(found.detach(), value, atol=1e-12, rtol=0, msg=lambda text, name=name: f"{name}: {text}")


class Start(FederatedCallback):
    """Keeps the net that a run starts from."""

    def on_round_start(self, trainer, module, round):
        if round == 1:
            self.net = copy.deepcopy(module.net)


# What an engine refuses, leaves out and chooses -----------------------------------------------------------------------


class KeepsCount(PersonalHead):
    """Counts visits, and has a head for each client."""

    def client_start(self, net, client):
        client.state["visits"] = client.state.get("visits", torch.zeros(1)) + 1
        return {}


class Poison(FederatedCallback):
    """After round 1, makes an input of client 2 infinite; keeps the state that it has by then."""

    def on_round_end(self, trainer, module, round, report):
        if round == 1:
            self.state = pack(module.stored.states.read(2))
            module.data.train_set.inputs[module.data.shards.train_indices(2)[0]] = float("inf")


class PoisonAndWatch(Poison):
    """Asks for the cohort's models, too."""

    def wants_models(self, round):
        return True

    def on_cohort_fit_end(self, trainer, module, round, models):
        inputs = module.data.evaluation.test_inputs()
        self.seen = models.clients, models.predict(inputs), models.predict_before(inputs)


@pytest.mark.parametrize(("engine", "method"), [("sequential", KeepsCount), ("vectorized", FedAvg), ("captured", FedAvg)])
def test_callbacks_do_not_see_a_model_that_is_not_finite(fit, engine, method):
    watch = PoisonAndWatch()
    run(fit, Case(method, mlp, ragged, momentum), engine, callbacks=[watch])
    clients, after, before = watch.seen
    assert clients == [1, 3, 4]
    assert after.isfinite().all()
    assert len(after) == len(before) == 3


@pytest.mark.parametrize(
    ("engine", "method"),
    [
        ("sequential", KeepsCount),
        ("vectorized", FedAvg),
        ("vectorized", KeepsCount),
        ("vectorized", Probing),
        ("captured", KeepsCount),
    ],
)
def test_a_client_that_is_not_finite_is_left_out(fit, engine, method):
    """The others are averaged as if it had not come, it is reported, and its state is as before.

    A stack where one of the clients is not a number leaves the others alone.
    """
    poison, case = Poison(), Case(method, mlp, ragged, momentum)
    actual = run(fit, case, engine, callbacks=[poison])
    expected = run(fit, case._replace(data=lambda: ragged(cohorts=[COHORTS[0], [1, 3, 4]])), "sequential")
    assert actual["reports"][1]["nonfinite"] == [2]
    assert actual["reports"][1]["num_updates"] == 3
    assert_same(actual["weights"], expected["weights"], 1e-10, "weights")
    if method is KeepsCount:
        assert_same(actual["states"], expected["states"], 1e-10, "states")
        assert_same(actual["states"][2], poison.state, 0, "state of client 2")
        assert poison.state["method/visits"] == 1


def random_slope_net(shape, classes):
    return Net(7, nn.Flatten(), nn.Linear(72, 7), nn.RReLU())


class Checkpointed(nn.Module):
    """Computes its layer again in the backward pass."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, inputs):
        return checkpoint(self.layer, inputs, use_reentrant=False)


def checkpointed_dropout_net(shape, classes):
    return Net(7, nn.Flatten(), nn.Linear(72, 7), Checkpointed(nn.Dropout(0.5)), nn.ReLU())


def refusal(fit, case, engine):
    with pytest.raises(ValueError) as error:
        run(fit, case, engine)
    assert "\n" not in str(error.value)
    return str(error.value)


def cumulative_norm_net(shape, classes):
    """Its BatchNorm averages over all batches: it reads its counter on the host."""
    return Net(3 * 36, nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3, momentum=None), nn.ReLU())


@pytest.mark.parametrize("net", [random_slope_net, checkpointed_dropout_net, cumulative_norm_net])
def test_nets_that_cannot_be_stacked(fit, capsys, monkeypatch, net):
    """Refused in one line with the cure; ``auto``, where it would stack, runs them one by one and says why: the same bits."""
    monkeypatch.setattr(engine_choice, "by_rule", lambda *_: engine_choice.Choice("vectorized", "small"))
    case = Case(FedAvg, net, ragged_pairs, sgd)
    text = refusal(fit, case, "vectorized")
    assert text.startswith("model.engine is vectorized, under which FedAvg cannot run (")
    assert text.endswith("set model.engine to sequential")
    assert "vmap: It looks like" not in text
    capsys.readouterr()
    chosen = run(fit, case, "auto")
    assert "Engine: sequential (FedAvg on Net cannot be vectorized: " in capsys.readouterr().out
    assert_same(chosen, run(fit, case, "sequential"), 0)


def adafactor(parameters):
    return torch.optim.Adafactor(parameters, lr=0.01)


def test_an_optimizer_that_looks_at_whole_weights_cannot_be_stacked(fit, capsys):
    """Adafactor's step of one entry depends on the others: refused by name, and ``auto`` knows."""
    case = Case(FedAvg, mlp, ragged, adafactor)
    text = refusal(fit, case, "vectorized")
    assert "model.optimizer Adafactor" in text
    assert text.count("set model.engine to sequential") == 1
    capsys.readouterr()
    chosen = run(fit, case, "auto")
    assert "Engine: sequential (Adafactor cannot be stacked)" in capsys.readouterr().out
    assert_same(chosen, run(fit, case, "sequential"), 0)


class AppliesTwice(FedAvg):
    def client_step(self, net, batch, client):
        gradients, loss = self.client_gradients(net, batch, client)
        client.apply(gradients)
        client.apply(gradients)
        return loss


class NeverApplies(FedAvg):
    def client_step(self, net, batch, client):
        return self.client_gradients(net, batch, client)[1]


@pytest.mark.parametrize("engine", ["sequential", "auto", "vectorized"])
@pytest.mark.parametrize(("method", "times"), [(AppliesTwice, 2), (NeverApplies, 0)])
def test_a_step_that_does_not_apply_once_is_refused(fit, engine, method, times):
    """A stacked or captured step hands its gradients over at its end: said before round 1, with the number of calls."""
    text = refusal(fit, Case(method, mlp, ragged, sgd), engine)
    assert text.endswith(f"{method.__name__}.client_step calls client.apply {times} times, must call it once")


@pytest.mark.parametrize("engine", ["sequential", "vectorized", "captured"])
def test_what_an_evaluation_leaves_out_is_what_the_client_received(fit, engine):
    """Of weights alone on a net with BatchNorm, in round 2: not the statistics that the run began with."""

    class Teaches(FedAvg):
        def client_loss(self, net, batch, client):
            names = client.received_state if self.complete else client.weight_names
            sent = {name: client.received_state[name] for name in names}
            said = client.evaluate(sent, lambda received: received(batch.inputs))
            return super().client_loss(net, batch, client) + (net(batch.inputs) - said).square().mean(dim=1)

    class Whole(Teaches):
        complete = True

    class WeightsOnly(Teaches):
        complete = False

    whole, part = (run(fit, Case(method, batch_norm_net, equal, sgd), engine, rounds=2) for method in (Whole, WeightsOnly))
    assert_same(part, whole, 0)


def test_batches_inside_a_local_step_are_refused(fit):
    """They are Python's loop, which no stacked step can hold."""

    class LoopsInside(FedAvg):
        def client_loss(self, net, batch, client):
            next(iter(client.batches()))
            return super().client_loss(net, batch, client)

    assert "client.batches, epoch or samples inside a local step" in refusal(
        fit, Case(LoopsInside, mlp, ragged, sgd), "vectorized"
    )


def test_a_local_step_changes_no_argument(fit):
    """What ``torch.vmap`` and ``torch.compile`` need: weights, buffers, batch and facts are as before."""
    data, steps = equal()
    method = CustomStep(batch_norm_net, optimizer=sgd, engine="sequential", **steps)
    fit(method, data, 1, precision="64-true")
    step, net = LocalStep(method, method.net, mean_gradient), method.net
    trained, untrained = dict(net.named_parameters()), dict(net.named_buffers())
    counts = data.label_counts[0]
    facts = {name: torch.tensor(1.0) for name in ("index", "num_train", "num_steps", "learning_rate")}
    facts |= {"label_counts": counts, "train_label_counts": counts, "broadcast": {}, "carry": {}}
    facts["received_state"] = dict(net.state_dict())
    facts["state"] = {"steps": torch.tensor(3.0, dtype=torch.float64)}
    before = copy.deepcopy((trained, untrained, facts))
    result = step(trained, untrained, next(iter(data.client_batches().batches(0, 1, 1))), 1, torch.tensor(0), facts)
    assert_same([trained, untrained, facts], list(before), 0)
    assert result.state["steps"] == 4
    assert result.untrained["features.1.num_batches_tracked"] == before[1]["features.1.num_batches_tracked"] + 1


def engine_line(capsys):
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("Engine"))
    return line


def test_auto_goes_by_the_layers_and_says_so(fit, capsys, monkeypatch):
    """One line at the start of the run, with the numbers that decide."""
    many = "Engine: sequential (4 samples a step, 57 of 169 weights in convolutions)"
    for net, few, expected in (
        (mlp, 0, "Engine: vectorized (2,172 weights times samples a step)"),
        (conv_net, 3, many),
        (deep_conv_net, 4, "Engine: sequential (4 samples a step, 285 of 397 weights in convolutions)"),
    ):
        monkeypatch.setattr(engine_choice, "_STACKABLE_IMAGES", few)
        capsys.readouterr()
        run(fit, Case(FedAvg, net, ragged, sgd), "auto")
        assert engine_line(capsys) == expected


@pytest.fixture
def clock(monkeypatch, tmp_path):
    """An empty cache, and seconds by kind of engine in place of measured ones; the engines that were measured are noted."""
    monkeypatch.setenv("FL_LIGHTNING_CACHE", str(tmp_path / "cache"))
    clock = SimpleNamespace(seconds={"SequentialEngine": 0.25, "VectorizedEngine": 0.5}, measured=[])

    def timed(engine, round, visits, turns, max_steps):
        assert 0 < len(visits) <= 10
        assert turns == 4
        assert max_steps == 3
        clock.measured.append(type(engine).__name__)
        return clock.seconds[clock.measured[-1]]

    monkeypatch.setattr(engine_choice, "timed", timed)
    return clock


def test_auto_measures_once_on_a_machine(fit, tmp_path, capsys, clock):
    """The faster engine, kept for the same command; measured anew for another net, an edited file, other threads."""
    case, both = Case(FedAvg, conv_net, ragged, sgd), ["SequentialEngine", "VectorizedEngine"]
    expected = run(fit, case, "sequential")
    capsys.readouterr()
    run(fit, case, "auto")
    assert engine_line(capsys) == "Engine: sequential (measured once on this machine: sequential 0.25 s, vectorized 0.5 s)"
    assert clock.measured == both

    clock.seconds["SequentialEngine"] = 1.0
    run(fit, case, "auto")
    assert engine_line(capsys).startswith("Engine: sequential (measured once")
    assert clock.measured == both

    run(fit, Case(FedAvg, group_norm_net, ragged, sgd), "auto")
    assert engine_line(capsys) == "Engine: vectorized (measured once on this machine: sequential 1 s, vectorized 0.5 s)"
    assert clock.measured == 2 * both

    for file in (tmp_path / "cache").glob("*.json"):
        file.write_text("edited")
    run(fit, case, "auto")
    assert engine_line(capsys).startswith("Engine: vectorized (measured once")
    assert clock.measured == 3 * both

    clock.seconds["VectorizedEngine"] = 2.0
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        actual = run(fit, case, "auto")
    finally:
        torch.set_num_threads(threads)
    assert engine_line(capsys).startswith("Engine: sequential (measured once")
    assert_same(actual, expected, 1e-10)


def test_auto_measures_anew_when_the_engines_change(fit, monkeypatch, clock):
    """The digest of their code is part of the key."""
    case, both = Case(FedAvg, conv_net, ragged, sgd), ["SequentialEngine", "VectorizedEngine"]
    run(fit, case, "auto")
    monkeypatch.setattr(engine_timing, "code", lambda: "another")
    run(fit, case, "auto")
    assert clock.measured == 2 * both


def test_the_digest_of_the_engines_code(monkeypatch, tmp_path):
    """The same twice, and another after a change of one file."""
    before = engine_timing.code()
    shutil.copytree(Path(engine_timing.__file__).parent, tmp_path / "engines")
    monkeypatch.setattr(engine_timing, "__file__", str(tmp_path / "engines" / "engine_timing.py"))
    assert engine_timing.code() == before
    (tmp_path / "engines" / "sums.py").open("a").write("# slower\n")
    assert engine_timing.code() != before


def test_a_resumed_run_keeps_the_engine_that_auto_measured(fit, tmp_path, capsys, clock):
    """On another machine too, where another engine is faster."""
    case = Case(FedAvg, conv_net, ragged, sgd)
    expected = run(fit, case, "auto", callbacks=[Save(tmp_path)])
    assert engine_line(capsys).startswith("Engine: sequential (measured once")
    clock.seconds["SequentialEngine"] = 1.0
    for file in (tmp_path / "cache").iterdir():
        file.unlink()
    resumed = run(fit, case, "auto", ckpt_path=tmp_path / "1.ckpt")
    assert engine_line(capsys) == "Engine: sequential (measured when the run began)"
    assert_same(resumed["weights"], expected["weights"], 0)


def test_auto_says_what_cannot_be_kept_or_stacked(fit, capsys, monkeypatch, clock, tmp_path):
    """Without a folder for the cache it measures at every start; a failure is the reason, and nothing is kept."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("FL_LIGHTNING_CACHE", str(tmp_path / "file" / "cache"))
    for _ in range(2):
        run(fit, Case(FedAvg, conv_net, ragged, sgd), "auto")
        line = engine_line(capsys)
        assert line.startswith(f"Engine: sequential (measured at every start ({tmp_path}/file/cache ")
        assert line.endswith(" with FL_LIGHTNING_CACHE=FOLDER): sequential 0.25 s, vectorized 0.5 s)")
    assert len(clock.measured) == 4

    monkeypatch.setenv("FL_LIGHTNING_CACHE", str(tmp_path / "cache"))
    clock.seconds = {"SequentialEngine": 0.25}
    run(fit, Case(FedAvg, conv_net, ragged, sgd), "auto")
    assert engine_line(capsys) == "Engine: sequential (FedAvg on Net cannot be vectorized: KeyError: 'VectorizedEngine')"
    assert list((tmp_path / "cache").glob("*.json")) == []


def test_of_several_processes_the_first_measures(clock):
    """What it found holds in the others."""

    class SecondRank(OneProcess):
        rank, size = 1, 2

        def broadcast(self, value):
            assert value is None
            return [{"sequential": 2.0, "vectorized": 1.0}, {}, ""]

    data = ragged()[0]
    data.setup()
    method = FedAvg(conv_net(SHAPE, CLASSES), optimizer=sgd, local_steps=1)
    method.join(data)
    choice = choose_engine(method, RunContext(ranks=SecondRank()), "auto", None, method.cohort(1), range(1, 3))
    assert choice == ("vectorized", "measured once on this machine: sequential 2 s, vectorized 1 s")
    assert clock.measured == []


def test_auto_does_not_stack_large_steps(fit, capsys, monkeypatch):
    """Above the limit of weights times samples a step one by one is faster: 539 weights, 4 samples, 2,156 against a limit."""
    weights = 72 * 7 + 7 + 7 * 4 + 4
    for limit, expected in ((4 * weights - 1, "sequential"), (4 * weights, "vectorized")):
        monkeypatch.setattr(engine_choice, "_STACKABLE_WORK", limit)
        capsys.readouterr()
        run(fit, Case(FedAvg, mlp, ragged, sgd), "auto")
        assert f"Engine: {expected} ({4 * weights:,} weights times samples a step)" in capsys.readouterr().out


class NobodyAtFirst(ClientSampler):
    """In round 2 client 3 alone, of two expected."""

    may_be_empty = True

    def cohort(self, round, num_clients, size, seed):
        return [] if round == 1 else [3]


@pytest.mark.parametrize("engine", ["auto", "tune"])
def test_a_first_round_of_nobody_hides_nothing(fit, capsys, monkeypatch, engine):
    """The first client to come is rehearsed: its 16 bytes count for two clients a round, its 9 samples for the engine."""

    def data():
        return whole_shards(cohorts=None, client_sampler=NobodyAtFirst(), clients_per_round=2)

    measured, timed = [], engine_choice.timed
    monkeypatch.setattr(engine_choice, "timed", lambda *some: (measured.extend(some[2]), timed(*some))[1])
    run(fit, Case(CustomStep, mlp, data, sgd), engine)
    out = capsys.readouterr().out
    assert "client state: up to 4 clients x 16 bytes = 64 bytes in memory" in out
    if engine == "auto":
        assert f"Engine: vectorized ({9 * (72 * 7 + 7 + 7 * 4 + 4):,} weights times samples a step)" in out
    else:
        assert measured == [Visit(3)] * 3


@pytest.mark.parametrize("method", [FedAvg, KeepsCount])
def test_tune_measures_once_and_changes_nothing(fit, tmp_path, capsys, monkeypatch, method):
    """Seconds of every engine are printed; results are those of one engine; a resumed run takes the choice over."""
    case = Case(method, mlp, ragged, momentum)
    expected = run(fit, case, "sequential")
    capsys.readouterr()
    assert_same(run(fit, case, "tune", callbacks=[Save(tmp_path)]), expected, 1e-10)
    text = capsys.readouterr().out
    chosen = re.search(r"Engine: (\w+) \(sequential \S+ s a round, vectorized \S+ s a round, captured \S+ s a round\)", text)
    assert chosen, text
    checkpoint = torch.load(tmp_path / "1.ckpt", weights_only=True)
    assert checkpoint["federated"]["tuned_engine"] == chosen[1]

    monkeypatch.setattr(engine_choice, "by_measurement", lambda *_: pytest.fail("measured again"))
    resumed = run(fit, case, "tune", ckpt_path=tmp_path / "1.ckpt")
    assert f"Engine: {chosen[1]} (measured when the run began)" in capsys.readouterr().out
    for part in ("weights", "buffers", "states"):
        assert_same(resumed[part], expected[part], 1e-10, part)


class Save(FederatedCallback):
    """A checkpoint after round 1."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def on_train_batch_end(self, trainer, *arguments):
        if trainer.global_step == 1:
            trainer.save_checkpoint(self.folder / "1.ckpt")


def test_tune_leaves_engines_out_that_cannot_run(fit, capsys):
    """Random slopes cannot be stacked: said, and the run goes on with another engine, with the results of that one."""
    case = Case(FedAvg, random_slope_net, equal, sgd)
    run(fit, case, "tune")
    text = capsys.readouterr().out
    assert "vectorized cannot run this: " in text
    assert re.search(r"Engine: (sequential|captured) \(", text)


@pytest.mark.parametrize("case", [HOOK_CASES[0], HOOK_CASES[4], HOOK_CASES[13], HOOK_CASES[15]], ids=name_of)
@pytest.mark.parametrize("num_bytes", [1, 60_000])
@pytest.mark.one_in(3)
def test_stacks_that_do_not_fit_into_memory_are_taken_in_turn(fit, monkeypatch, case, num_bytes):
    """One client a stack, or two or three: the same results as with all of them side by side."""
    sizes = []
    fit_stack = vectorized.VectorizedEngine._fit_stack

    def note(self, round, members, *arguments):
        sizes.append(len(members))
        fit_stack(self, round, members, *arguments)

    monkeypatch.setattr(vectorized.VectorizedEngine, "_fit_stack", note)
    monkeypatch.setattr(vectorized, "_CPU_STACK_BYTES", num_bytes)
    actual = run(fit, case, "vectorized")
    assert (max(sizes) == 1) == (num_bytes == 1), sizes
    assert len(sizes) > 4
    monkeypatch.undo()
    assert_same(actual, run(fit, case, "sequential"), 1e-10)


def test_cohorts_of_changing_sizes(fit):
    """Five clients, one, three: stacks use the memory of larger ones before them."""

    def changing():
        return ragged(cohorts=[[0, 1, 2, 3, 4], [1], [0, 2, 4]])

    for method, net in ((PersonalHead, mlp), (Curvature, group_norm_net)):
        assert_engines_agree(fit, Case(method, net, changing, momentum), rounds=3)


@pytest.mark.slow
def test_captured_runs_one_after_another_in_one_process(fit):
    """More runs than torch's limit of graphs for one function, each with another constant: none is refused or mixed up."""
    with torch._dynamo.config.patch(recompile_limit=2):
        for strength in range(3):

            class Pulled(Proximal):
                pull = float(strength)

                def client_penalty(self, net, client):
                    return self.pull * super().client_penalty(net, client)

            assert_engines_agree(fit, Case(Pulled, mlp, equal, sgd, {}, ("captured",)), rounds=1)
