"""Nets, data, optimizers and methods that run under every engine, and what such a run leaves behind."""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from declared_by_tests import needs_of, needs_without_net
from older_torch import COMPILED_ATTENTION_DROPOUT, STACKED_FIXED_GROUP_NORM
from torch import nn
from torch.func import functional_call

from fl_lightning import FedAvg, FederatedModule, Needs, methods
from fl_lightning.callbacks import FederatedCallback
from fl_lightning.data import IID, FederatedDataModule, RandomCrop, RandomHorizontalFlip, from_arrays
from fl_lightning.losses import TruncatedCrossEntropy
from fl_lightning.models import MLP
from fl_lightning.protocol import Visit, Weighted, pack

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


def random_slope_net(shape, classes):
    return Net(7, nn.Flatten(), nn.Linear(72, 7), nn.RReLU())


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


class KeepsCount(PersonalHead):
    """Counts visits, and has a head for each client."""

    def client_start(self, net, client):
        client.state["visits"] = client.state.get("visits", torch.zeros(1)) + 1
        return {}


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
