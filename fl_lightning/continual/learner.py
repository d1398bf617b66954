"""TaskLearner: every client learns its sequence of tasks, round by round.

J. Yoon, W. Jeong, G. Lee, E. Yang, S. J. Hwang: Federated Continual Learning with Weighted Inter-client Transfer. ICML 2021.
arXiv 2003.03196, Sections 3 and 5. A round is a tick of all clients' clocks: who is at which task is state of the federation,
so that synchronous and asynchronous streams, and resumed ones, run through the same loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fl_lightning.algorithm import ServerWeighting
from fl_lightning.checks import check_range
from fl_lightning.continual.checkpointed_tasks import check_same_tasks, save_tasks
from fl_lightning.continual.clock import Clock, Pace, Schedule, TaskClocks
from fl_lightning.continual.composition import check_composed, federations, gives_personal_models, obstacle
from fl_lightning.data import EvaluationInputs
from fl_lightning.exchange import Batch, Client, ClientState, LearnedTask, Needs, TaskProgress, Upload, Visit
from fl_lightning.functional.aggregation import State
from fl_lightning.module import FederatedModule, Net
from fl_lightning.random_streams import torch_stream

T = TypeVar("T")


class TaskLearner(FederatedModule):
    """Learns the tasks of ``data.tasks``; with its defaults FedAvg on task streams, with a class layer for each task.

    The class layer, ``classifier``, stays with the client: it is drawn anew when a task begins and kept when it ends. Clients'
    models are evaluated as they are after a local fit, on the test samples of every task learned so far. A client that is not
    visited while a task lasts, or whose last update in it is not finite, does not learn that task.

    Args:
        rounds_per_task: R, rounds after which a task is over.
        schedule: ``synchronous``: all clients change tasks together; ``asynchronous``: each by itself, after
            ``rounds_per_task`` rounds, lost ones too, or once its rate has fallen to ``smallest_rate``.
        patience: rounds without a lower validation loss after which a client divides its learning rate.
        rate_divisor: by what, above 1. The rate is whole again when a task begins.
        smallest_rate: learning rate below which a client is done with its task.
        train_unsampled: whether clients that are not in the cohort train too, without receiving or sending.
        evaluate_every: rounds between evaluations of all tasks learned; the end of a task is always evaluated.
        reset_adam_each_round: whether clients' optimizers begin anew in every round, as in the authors' code, or in every task.

    Raises:
        ValueError: if a value is out of range.
    """

    learns_alone: bool = False
    """Whether clients train alone in every round, without receiving or sending, unless the class has a federation among its
    bases, as ``class MineEWC(EWC, Mine)`` has."""

    federated: bool = True
    """Whether clients receive and send at all: follows from the bases."""

    per_task: Sequence[str] = ("classifier.*",)
    """Name patterns of weights of which each task has a copy."""

    drawn_anew: Sequence[str] = ("classifier.*",)
    """Of these, those that begin every task of every client with other values; the others begin with the initial ones."""

    needs = Needs(client_weights=True, task_streams=True)

    clocks: TaskClocks
    """Where every client is in its sequence."""
    task_accuracy: Tensor
    """(N, T, T): each client's accuracy at each position on the task of each position, NaN where it was not measured."""
    model_values: Tensor  # (N,), that a client's model consists of

    def __init_subclass__(cls, **keywords: Any) -> None:
        if "federated" in vars(cls):
            raise TypeError(f"{cls.__name__}.federated follows from its bases: leave it out, or declare learns_alone")
        check_composed(cls, TaskLearner, cls.obstacle_to)
        super().__init_subclass__(**keywords)
        cls.federated = not cls.learns_alone or bool(federations(cls, TaskLearner))

    @classmethod
    def obstacle_to(cls, federation: type[FederatedModule]) -> str | None:
        """Why this learner does not combine with a federation, and what to use; None: it does."""
        if (why := obstacle(federation)) is None and gives_personal_models(federation):
            return "gives each client a personal model, as task streams do: use one that trains a single one, such as FedAvg"
        return why

    def __init__(
        self,
        net: Net,
        rounds_per_task: int = 20,
        schedule: Schedule = "synchronous",
        patience: int = 5,
        rate_divisor: float = 3.0,
        smallest_rate: float = 1e-7,
        train_unsampled: bool = False,
        evaluate_every: int = 1,
        reset_adam_each_round: bool = True,
        server_weighting: ServerWeighting = "uniform",
        **common: Any,
    ) -> None:
        super().__init__(net, server_weighting=server_weighting, **common)
        self.pace = Pace(rounds_per_task, schedule, patience, rate_divisor, smallest_rate)
        self.rounds_per_task, self.schedule, self.patience = rounds_per_task, schedule, patience
        self.rate_divisor, self.smallest_rate = rate_divisor, smallest_rate
        check_range("model.evaluate_every", evaluate_every, at_least=1)
        self.train_unsampled, self.evaluate_every = train_unsampled, evaluate_every
        self.reset_adam_each_round = reset_adam_each_round
        self.needs = replace(self.needs, client_moments=not reset_adam_each_round)

    def configure_model(self) -> None:
        if self.data.tasks is None:
            raise ValueError(f"data.tasks is null, but {type(self).__name__} learns tasks: give data.tasks a TaskStream")
        super().configure_model()
        if not self.per_task_tensors(self.net):
            raise ValueError(
                f"model.net has no weight that is called {' or '.join(self.per_task)}, of which each task has a copy: call "
                "its class layer classifier"
            )
        shared = [name for name in self.trained_weights(self.net) if not self.is_personal(name)]
        if federations(type(self), TaskLearner) and not shared:
            raise ValueError(
                f"{type(self).__name__} leaves no weight of model.net to share, as all of them stay with clients or belong to "
                "single tasks: share more of them, or use a learner without a federation"
            )
        if hasattr(self, "clocks"):  # a second fit goes on
            return
        num_clients, num_tasks = self.data.streams.order.shape
        self.first_rate: float = self.optimizer([nn.Parameter(torch.zeros(1))]).param_groups[0]["lr"]
        self.clocks = TaskClocks(num_clients, num_tasks, self.pace, self.first_rate)
        self.register_buffer("task_accuracy", torch.full((num_clients, num_tasks, num_tasks), float("nan")).double())
        self.register_buffer("model_values", torch.zeros(num_clients, dtype=torch.int64))

    # Who is where ---------------------------------------------------------------------------------------------------

    def check_data(self) -> None:
        super().check_data()
        self.read_clocks()

    @property
    def is_over(self) -> bool:
        return self.clocks.is_over

    def read_clocks(self) -> None:
        """Clients' positions on the host, for what is decided there, and for the data module."""
        self.clocks.read()
        self.data.present_shards.go_to(self.positions)

    @property
    def positions(self) -> list[int]:
        """Of each client's task in its sequence."""
        return self.clocks.positions

    def task_progress(self) -> TaskProgress:
        return TaskProgress(self.positions, self.task_accuracy, self.model_values)

    @property
    def released_without_noise(self) -> tuple[str, ...]:
        return (*super().released_without_noise, "the validation loss that steers learning rates")

    def cohort(self, round: int) -> list[Visit]:
        """The sampled clients that still learn and, where they train without the server, the others."""
        sampled = set(self.sampled_clients(round)) if self.federated else set()
        return [
            Visit(client, receives=client in sampled, sends=client in sampled)
            for client in range(self.data.num_clients)
            if self.clocks.learns(client) and (client in sampled or self.train_unsampled or not self.federated)
        ]

    def client_learning_rate(self, round: int, client: int) -> float:
        return self.clocks.factors[client] * super().client_learning_rate(round, client)

    # A visit --------------------------------------------------------------------------------------------------------

    def client_start(self, net: nn.Module, client: Client) -> dict[str, Any]:
        position = self.positions[client.index]
        if int(client.state.get("position", -1)) != position:
            self.begin_task(net, client, position)
            device = client.label_counts.device
            client.state["position"] = torch.tensor(position, device=device)
            client.state["clock"] = Clock().to_tensor(device)
            # What the task began with counts as received, for hooks that compare the net with it.
            client.count_as_received(self.per_task_tensors(net), net)
        client.carry.update(self.begin_visit(net, client))
        start = super().client_start
        return {**self.as_used(net, client, lambda: start(net, client)), **client.carry}

    def begin_visit(self, net: nn.Module, client: Client) -> dict[str, Any]:
        """The learner's part of ``client_start``, before that of the federation, whose hooks find the result in ``carry``."""
        return {}

    def as_used(self, net: nn.Module, client: Client, hook: Callable[[], T]) -> T:
        """What a hook of the federation that may call the net gives, with the client's whole model in the net.

        By default the net is that.
        """
        return hook()

    def client_loss(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        loss = super().client_loss
        return self.as_used(net, client, lambda: loss(net, batch, client))

    def begin_task(self, net: nn.Module, client: Client, position: int) -> None:
        """A client's first visit in a task, ``net`` as received: the weights of single tasks become fresh.

        What is drawn anew gets its initial values in a random order, which is a draw however the net was initialised. Class
        layers that began alike would, in rounds so few that they hardly move, be one for all tasks, and a task's gradients
        would undo what the body learned before.

        Args:
            position: of the task in the client's sequence, from 0.
        """
        client.forget_moments()
        initial = dict(self.net.named_parameters()) | dict(self.net.named_buffers())
        for name, tensor in self.per_task_tensors(net).items():
            tensor.copy_(initial[name].detach())
            if self.is_drawn_anew(name):
                stream = torch_stream(self.seed, position, client.index, f"fresh {name}")
                order = torch.randperm(tensor.numel(), generator=stream).to(tensor.device)
                tensor.copy_(tensor.flatten()[order].view_as(tensor))

    def end_task(self, net: nn.Module, client: Client, position: int) -> None:
        """A client's last visit in a task, after its fit: the task's weights are kept in ``client.tasks``."""
        client.tasks[position] = LearnedTask({name: tensor.clone() for name, tensor in self.per_task_tensors(net).items()})

    def per_task_tensors(self, net: nn.Module) -> State:
        """Weights and buffers of which each task has a copy."""
        tensors = (*net.named_parameters(), *net.named_buffers())
        return {name: t.detach() for name, t in tensors if self.is_per_task(name) and not self.is_constant(name)}

    def is_per_task(self, name: str) -> bool:
        """Whether each task has a copy of a weight or buffer, which then stays with the client."""
        return any(fnmatch(name, pattern) for pattern in self.per_task)

    def is_personal(self, name: str) -> bool:
        return super().is_personal(name) or self.is_per_task(name)

    def is_constant(self, name: str) -> bool:
        return super().is_constant(name) and not self.is_drawn_anew(name)

    def is_drawn_anew(self, name: str) -> bool:
        """Whether every task begins with other values of a weight that each task has a copy of."""
        return any(fnmatch(name, pattern) for pattern in self.drawn_anew)

    def client_result(self, net: nn.Module, client: Client) -> Upload:
        position = self.positions[client.index]
        loss = self._validation_loss(net, client, position)
        clock = Clock.from_tensor(client.state["clock"]).tick(loss, self.pace.patience, self.pace.rate_divisor)
        client.state["clock"] = clock.to_tensor(client.label_counts.device)
        if self.clocks.is_last_visit(client.index, clock, partial(self._is_visited_within, client)):
            self.end_task(net, client, position)
        result = super().client_result
        return self.as_used(net, client, lambda: result(net, client))

    def _is_visited_within(self, client: Client, rounds: int) -> bool:
        """Whether a client is visited in one of so many next rounds."""
        if self.train_unsampled or not self.federated:
            return True
        last, named = client.round + rounds, self.data.participation.num_rounds
        last = last if named is None else min(last, named)
        return any(client.index in self.sampled_clients(round) for round in range(client.round + 1, last + 1))

    def _validation_loss(self, net: nn.Module, client: Client, position: int) -> float:
        inputs, targets = self.data.evaluation.samples_at(self.data.streams.indices(client.index, position, "validation"))
        logits = self.predict_task(net, client, position, inputs)
        return float(self.loss(logits, targets, client.label_counts).mean())

    # Evaluation -----------------------------------------------------------------------------------------------------

    def predict_task(self, net: nn.Module, client: Client, position: int, inputs: EvaluationInputs) -> Tensor:
        """Logits (samples, classes of a task) of a client's model, with the task's weights, in evaluation mode.

        Args:
            net: the client's, at its present task.
            position: of the task in the client's sequence.
        """
        weights = self.task_weights(net, client, position)

        def predict(frozen: nn.Module) -> Tensor:
            with parametrize.cached():  # composed weights, for all parts
                return torch.cat([frozen(part) for part in inputs.split(self.data.eval_batch_size)])

        return client.evaluate(weights, predict)

    def task_weights(self, net: nn.Module, client: Client, position: int) -> State:
        """All weights and buffers of a client's model for a task that it learns, or has learned."""
        weights = {name: tensor.detach() for name, tensor in (*net.named_parameters(), *net.named_buffers())}
        if position != self.positions[client.index] and position in client.tasks:
            kept, of_task = client.tasks[position].tensors, self.per_task_tensors(net)
            weights |= {name: tensor for name, tensor in kept.items() if name in of_task}
        return weights

    def num_values(self, net: nn.Module, client: Client) -> int:
        """Numbers that a client's model for all its tasks consists of, without those of unfinished tasks."""
        weights, of_task = dict(net.named_parameters()), self.per_task_tensors(net)
        shared = sum(weight.numel() for name, weight in weights.items() if name not in of_task)
        for task in client.tasks.values():
            shared += sum(tensor.numel() for name, tensor in task.tensors.items() if name in weights)
            shared += sum(tensor.values.numel() for tensor in task.sparse.values())
        return shared

    def kept_state(self, client: Client, state: ClientState) -> ClientState:
        """Of a client at the end of a task without its optimizer's moments."""
        return replace(state, moments={}) if self.positions[client.index] in client.tasks else state

    def probe(self, net: nn.Module, client: Client) -> State:
        """What the federation learns of a client's visit: its clock and, where that is due, how well it does its tasks."""
        position, num_tasks = self.positions[client.index], self.data.streams.num_tasks
        accuracy = torch.full((num_tasks,), float("nan"), dtype=torch.float64, device=client.label_counts.device)
        if position in client.tasks or client.round % self.evaluate_every == 0:
            for seen in range(position + 1):
                if seen == position or seen in client.tasks:
                    inputs, targets = self.data.evaluation.samples_at(self.data.streams.indices(client.index, seen, "test"))
                    hits = self.predict_task(net, client, seen, inputs).argmax(dim=1) == targets
                    accuracy[seen] = hits.double().mean()
        probed = super().probe
        return {
            **self.as_used(net, client, lambda: probed(net, client)),
            "client": torch.tensor(client.index),
            "rate_factor": client.state["clock"][0],
            "task_accuracy": accuracy,
            "model_values": torch.tensor(self.num_values(net, client)),
        }

    # The clocks of all ----------------------------------------------------------------------------------------------

    def after_server_step(self, probes: list[State]) -> None:
        """All clocks tick; who is done goes on to the next task."""
        super().after_server_step(probes)
        for probe in probes:
            client = int(probe["client"])
            if not probe["task_accuracy"].isnan().all():
                self.task_accuracy[client, self.positions[client]] = probe["task_accuracy"].to(self.device)
            self.model_values[client] = probe["model_values"]
        visited = [visit.client for visit in self.present_cohort]
        self.clocks.tick(visited, {int(probe["client"]): probe["rate_factor"] for probe in probes})
        self.read_clocks()

    def after_undo(self) -> None:
        super().after_undo()
        self.read_clocks()

    # Checkpoints ----------------------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        save_tasks(checkpoint, self._streams_in_short())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        check_same_tasks(checkpoint, self._streams_in_short())
        stored = checkpoint["state_dict"]
        for name, _ in self.clocks.named_buffers():
            if name in stored:  # where the clocks were buffers of the method
                stored[f"clocks.{name}"] = stored.pop(name)
        super().on_load_checkpoint(checkpoint)

    def _streams_in_short(self) -> dict[str, Any]:
        """What a run that goes on must share with the one that it goes on with."""
        streams = self.data.streams
        return {
            "data.num_clients": self.data.num_clients,
            "data.seed": self.data.seed,
            "data.tasks": ", ".join(f"({name})" for name in streams.names),
            "data.tasks.tasks_per_client": streams.num_tasks,
            "the digest of all clients' samples": streams.digest(),
        }
