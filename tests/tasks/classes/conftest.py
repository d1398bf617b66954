"""A tiny federation whose classes arrive, and fine-tuning on it as a plain loop with a head that grows."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from pairs import Pair, paired
from tiny_runs import six_classes, trainer_settings
from torch import Tensor, nn

from fl_lightning import FederatedModule
from fl_lightning.callbacks import FederatedCallback
from fl_lightning.data import Dataset, Dirichlet, FederatedDataModule, Samples
from fl_lightning.data.class_stream import ClassStream, DomainStream
from fl_lightning.data.tasks import Tasks
from fl_lightning.functional.random_streams import torch_stream
from fl_lightning.protocol import Learner, predict_in_batches

NUM_CLIENTS, NUM_TASKS, ROUNDS_PER_TASK, BATCH_SIZE = 3, 3, 2, 7
RATE, MOMENTUM = 0.1, 0.5

Weights = dict[str, Tensor]


class TinyNet(nn.Module):
    """A convolution, a hidden layer and a classifier; smooth, so that no kink magnifies rounding."""

    def __init__(self, num_classes: int = 6) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(2, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3), nn.Tanh())
        self.classifier = nn.Linear(3, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.classifier(self.features(inputs))


class Reports(FederatedCallback):
    """Keeps the report of every round, the weights after it, and what the model says of the test samples seen."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds, self.weights, self.logits = [], [], []

    def on_round_end(self, trainer, module, round, report):
        self.rounds.append(report)
        self.weights.append({name: weight.detach().clone() for name, weight in module.net.named_parameters()})
        self.logits.append(predict_in_batches(module.net, module.data.eval_batch_size, module.data.evaluation.test_inputs()))


class Arriving:
    """Three clients in float64, six classes in three tasks of two rounds; :meth:`train` runs a method.

    All that the plain loops take from the package is the data module, which says who holds what and serves the batches, and the
    random streams.
    """

    num_clients, num_tasks, rounds_per_task = NUM_CLIENTS, NUM_TASKS, ROUNDS_PER_TASK
    head = ("classifier.weight", "classifier.bias")
    cohorts = ((0, 1, 2), (0, 1), (0, 1), (1, 2), (0, 2), (1, 2))

    def __init__(self, fit: Callable) -> None:
        self._fit = fit

    def new_data(self, tasks: Tasks | None = ClassStream(num_tasks=3), **settings: object) -> FederatedDataModule:
        """150 training and 66 test samples of six classes."""
        common = {"num_clients": NUM_CLIENTS, "clients_per_round": NUM_CLIENTS, "batch_size": BATCH_SIZE}
        common |= {"partition": Dirichlet(1.0), "val_fraction": 0.0, "monitor_test": 1}
        return FederatedDataModule(**{"source": six_classes(unit=True), **common, "tasks": tasks, **settings})

    def ready_data(self, **settings: object) -> FederatedDataModule:
        """The same for plain loops."""
        data = self.new_data(**settings)
        data.setup()
        data.to(torch.device("cpu"), torch.float64)
        return data

    def domains(self, count: int, tasks: Tasks = DomainStream(), **settings: object) -> FederatedDataModule:
        """The same samples as domains x, y, ... in turn, which share the first classes: 3 of 2 domains, or 2 of 3."""
        data, classes = self.new_data(tasks, **settings), "abcdef"[: 6 // count]
        load = data.source.load

        def joined(root: object) -> Dataset:
            whole, names = load(root), tuple(f"{domain}/{name}" for domain in "xyz"[:count] for name in classes)
            parts = (Samples(part.inputs, part.targets) for part in (whole.train, whole.test))
            return Dataset(*parts, names, sources=tuple(name[0] for name in names))

        data.source.load = joined
        return data

    def new_net(self, num_classes: int = 6) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return TinyNet(num_classes).double()

    def train(
        self,
        method: Pair | type[Learner] | type[FederatedModule],
        data: FederatedDataModule | None = None,
        net: nn.Module | None = None,
        rounds: int = NUM_TASKS * ROUNDS_PER_TASK,
        ckpt_path: Path | None = None,
        poisoned: int | None = None,
        callbacks: Sequence[Callback] = (),
        checkpoints: Path | None = None,
        num_processes: int = 1,
        logger: object = False,
        **settings: object,
    ) -> FederatedModule:
        """A method, or FedAvg with a learner, after some rounds, with what :class:`Reports` kept as ``seen``.

        Args:
            poisoned: a client whose training samples, of all tasks, are infinite.
            checkpoints: folder for one a round, ``step=1.ckpt`` and so on.
        """
        data, seen = data or self.new_data(), Reports()
        data.setup()
        if poisoned is not None:
            for row in range(poisoned * data.class_streams.num_tasks, (poisoned + 1) * data.class_streams.num_tasks):
                data.train_set.inputs[data.shards.train_indices(row)] = float("inf")
        common = {
            "optimizer": lambda weights: torch.optim.SGD(weights, lr=RATE, momentum=MOMENTUM),
            "engine": "sequential",
        }
        kind = paired(method) if isinstance(method, Pair) or issubclass(method, Learner) else method
        if isinstance(kind, Pair):
            common["rounds_per_task"] = ROUNDS_PER_TASK
        trained = kind(net or self.new_net(), **{**common, **settings})
        trainer = trainer_settings([seen, *callbacks], checkpoints, num_processes)
        self._fit(trained, data, rounds, ckpt_path, logger=logger, **trainer)
        trained.seen = seen
        return trained

    # For plain loops ------------------------------------------------------------------------------------------------

    def plain(
        self,
        objective: Callable[[SimpleNamespace, Weights, Tensor, Tensor], Tensor],
        data: FederatedDataModule | None = None,
        after_task: Callable[[SimpleNamespace, Weights], None] = lambda visit, weights: None,
        after_fit: Callable[[SimpleNamespace, Weights], None] = lambda visit, weights: None,
        cohorts: Sequence[Sequence[int]] | None = None,
        rounds: int = NUM_TASKS * ROUNDS_PER_TASK,
        whole_head: bool = False,
    ) -> Weights:
        """FedAvg, clients weighted by their samples, with a head that has rows for the classes seen alone.

        Args:
            whole_head: rows for all classes instead, those to come 0 at the start, those of a task replaced when it begins.
            objective: from a visit, the weights and a batch; the visit has ``client``, ``round``, ``step``, ``position``,
                ``received`` (weights) and ``first`` and ``seen``, the first new class and the number of those seen.
            after_task: called with a visit without client and the global weights after the last round of each task.
            after_fit: called with a visit and the client's weights after its fit.
        """
        data = data or self.ready_data()
        initial = {name: weight.detach().clone() for name, weight in self.new_net().named_parameters()}
        counts = [2, 4, 6]
        to_come = slice(2, None) if whole_head else slice(0)
        rest = {name: torch.zeros_like(weight[to_come]) for name, weight in initial.items() if name in self.head}
        server = {n: torch.cat([weight[:2], rest[n]]) if n in rest else weight for n, weight in initial.items()}
        for round in range(1, rounds + 1):
            position = (round - 1) // ROUNDS_PER_TASK
            data.present_shards.go_to([position] * NUM_CLIENTS)
            if position > 0 and round % ROUNDS_PER_TASK == 1:
                drawn = torch.rand(2, 3, generator=torch_stream(0, position, -1, "rows of the head"), dtype=torch.float64)
                rows = {"classifier.weight": (2 * drawn - 1) / 3**0.5, "classifier.bias": torch.zeros(2, dtype=torch.float64)}
                old, end = 2 * position, 2 * position + 2
                server = {n: torch.cat([w[:old], rows[n], w[end:]]) if n in rows else w for n, w in server.items()}
            cohort = range(NUM_CLIENTS) if cohorts is None else cohorts[round - 1]
            visit = SimpleNamespace(round=round, position=position, received=server, seen=counts[position])
            visit.first = counts[position - 1] if position > 0 else 0
            visit.is_last_round = round % ROUNDS_PER_TASK == 0
            locals = {}
            for client in cohort:
                visit.client, visit.data = client, data
                locals[client] = self.fit(data, server, visit, objective)
                after_fit(visit, locals[client])
            sizes = {client: data.num_train(client) for client in cohort}
            total = sum(sizes.values())
            server = {name: sum(sizes[c] * locals[c][name] for c in cohort) / total for name in server}
            if visit.is_last_round:
                after_task(visit, server)
        return server

    @staticmethod
    def fit(data: FederatedDataModule, weights: Weights, visit: SimpleNamespace, objective: Callable) -> Weights:
        """Weights after an epoch of SGD with momentum; those given are left alone."""
        weights = {name: weight.detach().clone() for name, weight in weights.items()}
        velocity = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        steps = -(-data.num_train(visit.client) // BATCH_SIZE)
        for step, batch in enumerate(data.client_batches().batches(visit.client, visit.round, steps)):
            visit.step = step
            leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
            value = objective(visit, leaves, batch.inputs, batch.targets)
            for (name, leaf), gradient in zip(leaves.items(), torch.autograd.grad(value, list(leaves.values()))):
                velocity[name] = MOMENTUM * velocity[name] + gradient
                weights[name] = leaf.detach() - RATE * velocity[name]
        return weights

    @staticmethod
    def features(weights: Weights, inputs: Tensor) -> Tensor:
        """Of :class:`TinyNet`, (B, 3)."""
        first = nn.functional.conv2d(inputs, weights["features.0.weight"], weights["features.0.bias"]).tanh().flatten(1)
        return nn.functional.linear(first, weights["features.3.weight"], weights["features.3.bias"]).tanh()

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        """(B, rows of the head)."""
        return self.features(weights, inputs) @ weights["classifier.weight"].T + weights["classifier.bias"]

    @staticmethod
    def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
        """Mean over samples."""
        return (logits.logsumexp(dim=1) - logits[torch.arange(len(targets)), targets]).mean()

    def new_loss(self, visit: SimpleNamespace, weights: Weights, inputs: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy among the new classes."""
        return self.cross_entropy(self.logits(weights, inputs)[:, visit.first :], targets - visit.first)

    def seen_loss(self, visit: SimpleNamespace, weights: Weights, inputs: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy among all classes seen."""
        return self.cross_entropy(self.logits(weights, inputs), targets)

    @staticmethod
    def assert_same(actual: nn.Module | Weights, expected: nn.Module | Weights, atol: float = 1e-9) -> None:
        """Weights by name, within ``atol``."""
        named = [dict(w.named_parameters()) if isinstance(w, nn.Module) else w for w in (actual, expected)]
        assert named[0].keys() == named[1].keys()
        for name, value in named[1].items():
            torch.testing.assert_close(named[0][name].detach(), value.detach(), atol=atol, rtol=0, msg=name)


@pytest.fixture
def arriving(fit) -> Arriving:
    return Arriving(fit)
