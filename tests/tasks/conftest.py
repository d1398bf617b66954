"""A tiny federation on task streams, and FedAvg on it as a plain loop, to which each method's test adds its equations."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback
from pairs import Pair, paired
from tiny_runs import six_classes, trainer_settings
from torch import Tensor, nn

from fl_lightning import FederatedModule
from fl_lightning.callbacks import FederatedCallback
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.tasks import TaskStream
from fl_lightning.functional.random_streams import torch_stream
from fl_lightning.protocol import ClientState, SparseTensor, pack
from fl_lightning.tasks import FedWeIT, TaskLearner

NUM_CLIENTS, NUM_TASKS, ROUNDS_PER_TASK, BATCH_SIZE = 3, 3, 2, 7
RATE, MOMENTUM = 0.1, 0.5

Weights = dict[Any, Tensor]  # mostly by name


class TinyNet(nn.Module):
    """A convolution, a hidden layer and a classifier; smooth, so that no kink magnifies rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.hidden, self.classifier = nn.Conv2d(2, 4, 2), nn.Linear(16, 3), nn.Linear(3, 2)

    def features(self, inputs: Tensor) -> Tensor:
        return self.hidden(self.conv(inputs).tanh().flatten(1)).tanh()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.classifier(self.features(inputs))


class Reports(FederatedCallback):
    """Keeps the report of every round, and where the clients were before it."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds, self.positions = [], []

    def on_round_start(self, trainer, module, round):
        self.positions.append(list(module.tasks.clocks.positions))

    def on_round_end(self, trainer, module, round, report):
        self.rounds.append(report)


class Tiny:
    """Three clients in float64, six classes in three tasks; :meth:`train` runs a method, the rest is for loops without it.

    All that these loops take from the package is the data module, which says who holds what and serves the batches, and the
    random streams.
    """

    num_clients, num_tasks, rounds_per_task = NUM_CLIENTS, NUM_TASKS, ROUNDS_PER_TASK
    body = ("conv.weight", "conv.bias", "hidden.weight", "hidden.bias")
    head = ("classifier.weight", "classifier.bias")
    # Client 2 learns its second task in one round, client 0 its third not in the last.
    cohorts = [[0, 1, 2], [0, 1], [0, 1], [1, 2], [0, 2], [1, 2]]

    def __init__(self, fit: Callable) -> None:
        self._fit = fit
        self.data = self.new_data()
        self.data.setup()
        self.data.to(torch.device("cpu"), torch.float64)
        self.weights: Weights = {name: weight.detach() for name, weight in self.new_net().named_parameters()}

    def new_data(self, tasks: TaskStream | None = TaskStream(classes_per_task=2), **settings: object) -> FederatedDataModule:
        """Of every task each client has 18 training, 2 validation and 4 test samples: three local steps."""
        common = {"num_clients": NUM_CLIENTS, "clients_per_round": NUM_CLIENTS, "batch_size": BATCH_SIZE}
        return FederatedDataModule(six_classes(), **{**common, "tasks": tasks, **settings})

    def new_net(self) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return TinyNet().double()

    def new_linear_net(self, num_classes: int = 2) -> nn.Module:
        """Without a convolution, which engines are chosen by."""
        layers = {"flat": nn.Flatten(), "body": nn.Linear(18, 3), "classifier": nn.Linear(3, num_classes)}
        return nn.Sequential(OrderedDict(layers)).double()

    def train(
        self,
        method: Pair | type[FedWeIT] | type[TaskLearner] | Callable[..., FederatedModule],
        data: FederatedDataModule | None = None,
        net: nn.Module | None = None,
        rounds: int = 100,
        ckpt_path: Path | None = None,
        poisoned: int | None = None,
        callbacks: Sequence[Callback] = (),
        checkpoints: Path | None = None,
        num_processes: int = 1,
        **settings: object,
    ) -> FederatedModule:
        """A method after all tasks, or so many rounds, with reports and positions of the rounds as ``seen``.

        Its ``outputs`` are what clients say of their test samples, by client, round and position.

        Args:
            poisoned: a client whose training samples, of all tasks, are infinite.
            checkpoints: folder for one a round, ``step=1.ckpt`` and so on.
        """
        data, seen = data or self.new_data(), Reports()
        data.setup()
        if poisoned is not None:
            for row in range(poisoned * data.streams.num_tasks, (poisoned + 1) * data.streams.num_tasks):
                data.train_set.inputs[data.shards.train_indices(row)] = float("inf")
        common = {
            "optimizer": lambda weights: torch.optim.SGD(weights, lr=RATE, momentum=MOMENTUM),
            "rounds_per_task": ROUNDS_PER_TASK,
            "patience": 100,
            "engine": "sequential",
        }
        kind = paired(method) if isinstance(method, type | Pair) else method
        trained = kind(net or self.new_net(), **{**common, **settings})
        # A run with cohorts by name has as many rounds at most.
        rounds = rounds if data.cohorts is None else min(rounds, len(data.cohorts))
        trained.outputs, predict_task = {}, trained.tasks.predict

        def watched(net, client, position, part):
            logits, targets = predict_task(net, client, position, part)
            trained.outputs[client.index, client.round, position] = logits  # of validation samples first
            return logits, targets

        trained.tasks.predict = watched
        trainer = trainer_settings([seen, *callbacks], checkpoints, num_processes)
        self._fit(trained, data, rounds, ckpt_path, **trainer)
        trained.seen = seen
        return trained

    # For plain loops ------------------------------------------------------------------------------------------------

    def rounds(self, cohorts: Sequence[Sequence[int]] | None = None) -> Iterator[tuple[int, int, Sequence[int]]]:
        """Round, position of all clients and cohort; the data module follows."""
        for round in range(1, NUM_TASKS * ROUNDS_PER_TASK + 1):
            position = (round - 1) // ROUNDS_PER_TASK
            self.data.present_shards.go_to([position] * NUM_CLIENTS)
            yield round, position, range(NUM_CLIENTS) if cohorts is None else cohorts[round - 1]

    def samples(self, client: int, position: int, part: str) -> tuple[Tensor, Tensor]:
        """A client's ``train`` (of its present task), ``validation`` or ``test`` samples of a task."""
        if part == "train":
            (batch,) = self.data.client_batches().client_samples(client)
            return batch.inputs, batch.targets
        inputs, targets = self.data.evaluation.samples_at(self.data.streams.indices(client, position, part))
        return torch.cat([*inputs.split(100)]), targets

    def drawn(self, name: str, client: int, position: int, initial: Tensor | None = None) -> Tensor:
        """What a client's task begins with of a class layer, or of ``initial``: the same entries in an order drawn for it."""
        initial = (self.weights[name] if initial is None else initial).detach()
        order = torch.randperm(initial.numel(), generator=torch_stream(0, position, client, f"fresh {name}"))
        return torch.stack([initial.flatten()[index] for index in order.tolist()]).reshape(initial.shape)

    def drawn_head(self, client: int, position: int) -> Weights:
        return {name: self.drawn(name, client, position) for name in self.head}

    def fit(
        self,
        weights: Weights,
        client: int,
        round: int,
        objective: Callable[[Weights, Tensor, Tensor], Tensor],
        correct: Callable[[str, Tensor], Tensor] = lambda name, gradient: gradient,
        rate: float = RATE,
        momentum: float = MOMENTUM,
    ) -> Weights:
        """Weights after an epoch of SGD with momentum; those given are left alone."""
        weights = {name: weight.detach().clone() for name, weight in weights.items()}
        velocity = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        for batch in self.data.client_batches().batches(client, round, -(-self.data.num_train(client) // BATCH_SIZE)):
            leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
            value = objective(leaves, batch.inputs, batch.targets)
            gradients = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True, allow_unused=True)
            for (name, weight), gradient in zip(leaves.items(), gradients):
                velocity[name] = momentum * velocity[name] + correct(name, gradient)
                weights[name] = weight.detach() - rate * velocity[name]
        return weights

    def plain(
        self,
        penalty: Callable[[SimpleNamespace, Weights], Tensor | float] = lambda visit, weights: 0.0,
        correct: Callable[[SimpleNamespace, str, Tensor], Tensor] = lambda visit, name, gradient: gradient,
        after_fit: Callable[[SimpleNamespace, Weights], None] = lambda visit, weights: None,
        after_round: Callable[[], None] = lambda: None,
        federated: bool = True,
        per_task: Sequence[str] = head,
        cohorts: Sequence[Sequence[int]] | None = None,
        train_unsampled: bool = False,
        rate: Callable[[int], float] = lambda position: RATE,
        of_batch: Callable[[SimpleNamespace, Weights, Tensor], Tensor | float] = lambda visit, weights, inputs: 0.0,
        after_server: Callable[[Weights], None] = lambda server: None,
    ) -> SimpleNamespace:
        """FedAvg, clients of equal weight, or local training, with weights of single tasks.

        A visit has ``client``, ``position``, ``received`` (the weights that it starts from), ``sampled`` and ``is_last`` (in
        its task).

        Args:
            penalty: added to the mean loss; from a visit and the weights.
            correct: from a visit, a weight's name and its gradient to what the optimizer gets.
            after_fit: called with a visit and the weights after it.
            after_round: called once the server has averaged.
            federated: whether it does, all but the weights of single tasks.
            per_task: names of the weights of which each task has a copy.
            rate: from a position.
            of_batch: added to the mean loss; from a visit, the weights and the inputs of a batch.
            after_server: changes the server's averaged weights.

        Returns:
            ``server``, weights; ``now`` by client; ``kept`` by client and position; ``outputs`` as of :meth:`train`.
        """
        server, now, at, kept, outputs = dict(self.weights), {}, {}, {}, {}
        everyone = train_unsampled or not federated
        plan = [(position, range(NUM_CLIENTS) if everyone else cohort) for _, position, cohort in self.rounds(cohorts)]
        for round, position, cohort in self.rounds(cohorts):
            for client in plan[round - 1][1]:
                received, sampled = dict(now.get(client, self.weights)), federated and client in cohort
                received.update({name: weight for name, weight in server.items() if sampled and name not in per_task})
                if at.get(client) != position:
                    fresh = {**self.weights, **self.drawn_head(client, position)}
                    received.update({name: fresh[name] for name in per_task})
                is_last = not any(when == position and client in others for when, others in plan[round:])
                visit = SimpleNamespace(client=client, position=position, received=received, sampled=sampled, is_last=is_last)
                at[client] = position
                now[client] = self.fit(
                    received,
                    client,
                    round,
                    lambda weights, inputs, targets, visit=visit: (
                        self.loss(weights, inputs, targets) + penalty(visit, weights) + of_batch(visit, weights, inputs)
                    ),
                    lambda name, gradient, visit=visit: correct(visit, name, gradient),
                    rate(position),
                )
                after_fit(visit, now[client])
                if is_last:
                    kept[client, position] = {name: now[client][name] for name in per_task}
                for seen in (seen for seen in range(position + 1) if seen == position or (client, seen) in kept):
                    weights = now[client] if seen == position else {**now[client], **kept[client, seen]}
                    outputs[client, round, seen] = self.logits(weights, self.samples(client, seen, "test")[0])
            for name in server.keys() - set(per_task) if federated else ():
                server[name] = sum(now[client][name] for client in cohort) / len(cohort)
            after_server(server)
            after_round()
        return SimpleNamespace(server=server, now=now, kept=kept, outputs=outputs)

    @staticmethod
    def logits(weights: Weights, inputs: Tensor) -> Tensor:
        """Of :class:`TinyNet`."""
        features = F.conv2d(inputs, weights["conv.weight"], weights["conv.bias"]).tanh().flatten(1)
        hidden = F.linear(features, weights["hidden.weight"], weights["hidden.bias"]).tanh()
        return F.linear(hidden, weights["classifier.weight"], weights["classifier.bias"])

    def loss(self, weights: Weights, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy."""
        outputs = self.logits(weights, inputs)
        return (outputs.logsumexp(dim=1) - outputs[torch.arange(len(targets)), targets]).mean()

    def fisher(self, weights: Weights, client: int) -> Weights:
        """Mean over the client's training samples of the squared gradient of a sample's loss, one sample after another."""
        leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
        inputs, targets = self.samples(client, -1, "train")
        total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        for i in range(len(targets)):
            loss = self.loss(leaves, inputs[i : i + 1], targets[i : i + 1])
            for name, gradient in zip(total, torch.autograd.grad(loss, list(leaves.values()))):
                total[name] += gradient**2 / len(targets)
        return total

    # Comparisons ----------------------------------------------------------------------------------------------------

    def assert_same(self, actual: Weights, expected: Weights, atol: float = 1e-9) -> None:
        """Tensors by name, within ``atol``; integers exactly."""
        assert actual.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(
                actual[name].detach(),
                value.detach(),
                atol=atol,
                rtol=0,
                equal_nan=True,
                msg=lambda text, name=name: f"{name}: {text}",
            )

    def assert_same_end(self, actual: FederatedModule, expected: FederatedModule, atol: float = 0.0) -> None:
        """The model, what the server keeps in addition to it, and the clients' states, by default bit for bit."""
        self.assert_same(actual.state_dict(), expected.state_dict(), atol)
        assert sorted(actual.stored.states.clients()) == sorted(expected.stored.states.clients())
        for client in expected.stored.states.clients():
            self.assert_same_state(actual.stored.states.read(client), expected.stored.states.read(client), atol)
        bases = [getattr(method.tasks, "knowledge_base", {}) for method in (actual, expected)]
        self.assert_same(*map(_flat, bases), atol)

    def assert_same_state(self, actual: ClientState, expected: ClientState, atol: float = 0.0) -> None:
        """All parts of what a client keeps, by default bit for bit."""
        torch.testing.assert_close(pack(actual), pack(expected), atol=atol, rtol=0, equal_nan=True)

    def assert_plain(self, method: FederatedModule, expected: SimpleNamespace) -> None:
        """A method ends as :meth:`plain` did: server, clients, what they keep of each task, and accuracies."""
        self.assert_same(dict(method.net.named_parameters()), expected.server)
        for client, weights in expected.now.items():
            state = method.stored.states.read(client)
            self.assert_same(state.weights, weights)
            kept = {position: per_task for (owner, position), per_task in expected.kept.items() if owner == client}
            assert state.tasks.keys() == kept.keys()
            for position, per_task in kept.items():
                self.assert_same(state.tasks[position].tensors, per_task)
                assert not state.tasks[position].sparse
        self.assert_outputs(method, expected.outputs)

    @staticmethod
    def dense(sparse: SparseTensor, like: Tensor) -> Tensor:
        """What is kept sparse, of a single block, in the shape of a weight."""
        tensor = torch.zeros_like(like)
        tensor.view(-1)[sparse.offsets.long() + 2**15] = sparse.values
        return tensor

    def assert_outputs(self, method: FederatedModule, expected: dict[tuple[int, int, int], Tensor]) -> None:
        """What clients say of their test samples, of every task that they can do, and the accuracies that the server keeps."""
        self.assert_same(method.outputs, expected)
        accuracy = torch.full((NUM_CLIENTS, NUM_TASKS, NUM_TASKS), float("nan"), dtype=torch.float64)
        for (client, round, position), logits in sorted(expected.items(), key=lambda item: item[0][1]):
            _, targets = self.samples(client, position, "test")
            hits = sum(int(row.argmax()) == int(target) for row, target in zip(logits, targets))
            accuracy[client, (round - 1) // ROUNDS_PER_TASK, position] = hits / len(targets)
        self.assert_same({"accuracy": method.tasks.task_accuracy}, {"accuracy": accuracy})

    def assert_moved(self, weights: Weights, names: Sequence[str]) -> None:
        """These weights are far from where they began."""
        for name in names:
            assert (weights[name] - self.weights[name]).abs().max() > 1e-3, name


def _flat(knowledge_base: dict) -> Weights:
    """``client/position/layer/part`` -> tensor."""
    return {
        f"{c}/{p}/{layer}/{n}": t
        for c, tasks in knowledge_base.items()
        for p, parts in tasks.items()
        for layer, sparse in parts.items()
        for n, t in vars(sparse).items()
    }


@pytest.fixture
def tiny(fit) -> Tiny:
    return Tiny(fit)
