"""TaskLearner: every client learns its sequence of tasks, round by round.

J. Yoon, W. Jeong, G. Lee, E. Yang, S. J. Hwang: Federated Continual Learning with Weighted Inter-client Transfer. ICML 2021.
arXiv 2003.03196, Sections 3 and 5. A round is a tick of all clients' clocks. The clients' positions are state of the
federation, so synchronous, asynchronous and resumed streams run through the same loop.
"""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch
from functools import partial
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fl_lightning.checks import check_choice, check_range, check_whole
from fl_lightning.functional.aggregation import State
from fl_lightning.functional.random_streams import torch_stream
from fl_lightning.functional.stateless import tensors_of
from fl_lightning.methods.localonly import LocalOnly
from fl_lightning.models.network import of_class_layer
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import (
    Client,
    ClientState,
    DataNeeds,
    LearnedTask,
    Learner,
    Needs,
    TaskProgress,
    Visit,
    overridden,
    predict_in_batches,
)
from fl_lightning.protocol.learner import obstacle_to_streams
from fl_lightning.tasks.clock import Clock, Schedule, TaskClocks, is_visited_within, refuse_another_visit


class TaskArguments(TypedDict, total=False):
    """The arguments of :class:`TaskLearner` by name and type, for a subclass's ``**pace: Unpack[TaskArguments]``."""

    rounds_per_task: int
    schedule: Schedule
    patience: int
    rate_divisor: float
    smallest_rate: float
    train_unsampled: bool
    evaluate_every: int
    reset_adam_each_round: bool


class TaskLearner(Learner):
    """Learns the tasks of ``data.tasks``, a ``TaskStream``, with a class layer for each; it does nothing against forgetting.

    The method decides what goes through the server, ``FedProx(net, tasks=TaskLearner())``; with ``LocalOnly`` nothing does. The
    class layer, ``classifier``, stays with the client. New values are drawn for it when a task begins, and it is kept when the
    task ends. Clients' models are evaluated after a local fit, on the test samples of every task learned so far. A client that
    is not visited while a task lasts, or ends it with an update that is not finite, late or lost, does not learn that task.

    Args:
        rounds_per_task: R, rounds after which a task is over.
        schedule: ``synchronous``: all clients change tasks together; ``asynchronous``: each by itself, after
            ``rounds_per_task`` rounds, lost ones too, or once its rate is below ``smallest_rate``.
        patience: rounds without a lower validation loss after which a client divides its learning rate.
        rate_divisor: divisor of the learning rate, above 1. Each task begins with the full rate.
        smallest_rate: learning rate below which a client has finished its task.
        train_unsampled: whether clients that are not in the cohort train too, without receiving or sending.
        evaluate_every: rounds between evaluations of all tasks learned; the end of a task is always evaluated.
        reset_adam_each_round: whether clients' optimizers are reset in every round, as in the authors' code, or in every task.

    Raises:
        ValueError: if a value is out of range.
    """

    per_task: Sequence[str] = ("classifier.*",)
    """Name patterns of weights of which each task has a copy."""

    drawn_anew: Sequence[str] = ("classifier.*",)
    """Of these, those that begin every task of every client with other values; the others begin with the initial ones."""

    extended = ("begin_run", "begin_visit", "begin_task", "end_visit", "end_task", "end_round")

    shares_weights: bool = True
    """Whether a federation that shares no weight is refused, as it has nothing to share."""

    needs = Needs(client_weights=True, data=DataNeeds(task_streams=True))

    unprotected = ("the validation loss that steers learning rates",)

    method: FederatedModule
    clocks: TaskClocks
    """Where every client is in its sequence."""
    task_accuracy: Tensor
    """(N, T, T): each client's accuracy at each position on the task of each position, NaN where it was not measured."""
    model_values: Tensor  # (N,), that a client's model consists of

    def __init__(
        self,
        rounds_per_task: int = 20,
        schedule: Schedule = "synchronous",
        patience: int = 5,
        rate_divisor: float = 3.0,
        smallest_rate: float = 1e-7,
        train_unsampled: bool = False,
        evaluate_every: int = 1,
        reset_adam_each_round: bool = True,
    ) -> None:
        super().__init__()
        for name, value in (("rounds_per_task", rounds_per_task), ("patience", patience), ("evaluate_every", evaluate_every)):
            check_whole(f"model.tasks.{name}", value, at_least=1)
        check_choice("model.tasks.schedule", schedule, Schedule)
        check_range("model.tasks.rate_divisor", rate_divisor, above=1, hint="the paper uses 3")
        check_range("model.tasks.smallest_rate", smallest_rate, at_least=0, hint="0 never ends a task early")
        self.schedule: Schedule = schedule
        self.rounds_per_task, self.patience = rounds_per_task, patience
        self.rate_divisor, self.smallest_rate = rate_divisor, smallest_rate
        self.train_unsampled, self.evaluate_every = train_unsampled, evaluate_every
        self.reset_adam_each_round = reset_adam_each_round
        self.needs = replace(self.needs, client_moments=not reset_adam_each_round)

    def obstacle_to(self, method: FederatedModule) -> str | None:
        if (why := obstacle_to_streams(method)) is not None:
            return why
        if method.fine_tuned or overridden(method, FederatedModule.personal_model):
            return "gives each client a personal model, as task streams do: use one that trains a single model, such as FedAvg"
        return None

    def adapt_net(self, net: nn.Module) -> None:
        super().adapt_net(net)
        self.per_task, self.drawn_anew = of_class_layer(net, self.per_task), of_class_layer(net, self.drawn_anew)

    def begin_run(self) -> None:
        super().begin_run()
        if self.data.tasks is None:
            raise ValueError(f"data.tasks is null, but {type(self).__name__} learns tasks: give data.tasks a TaskStream")
        net = self.method.net
        if not self.per_task_tensors(net):
            raise ValueError(
                f"model.net has no weight that is called {' or '.join(self.per_task)}, of which each task has a copy: set "
                "model.class_layer"
            )
        needs_shared = self.shares_weights and not isinstance(self.method, LocalOnly)
        if needs_shared and all(map(self.method.is_personal, self.method.trained_weights(net))):
            raise ValueError(
                f"{type(self.method).__name__} with {type(self).__name__} leaves no weight of model.net to share, as all stay "
                "with clients or belong to single tasks: share more of them, or use LocalOnly"
            )
        num_clients, num_tasks = self.data.streams.order.shape
        self.first_rate: float = self.method.optimizer([nn.Parameter(torch.zeros(1))]).param_groups[0]["lr"]
        paces = self.rounds_per_task, self.schedule, self.first_rate, self.smallest_rate
        self.clocks = TaskClocks(num_clients, num_tasks, *paces)
        self.register_buffer("task_accuracy", torch.full((num_clients, num_tasks, num_tasks), float("nan")).double())
        self.register_buffer("model_values", torch.zeros(num_clients, dtype=torch.int64))

    # Who is where ---------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self.clocks.is_over

    def follow_buffers(self) -> None:
        """Clients' positions on the host, for decisions there and for the data module."""
        self.clocks.read()
        self.data.present_shards.go_to(self.clocks.positions)

    def task_progress(self) -> TaskProgress:
        return TaskProgress(self.clocks.positions, self.task_accuracy, self.model_values)

    def visits(self, visits: Sequence[Visit]) -> list[Visit]:
        """Those that still learn and, where they train without the server, the others."""
        named = {visit.client: visit for visit in visits}
        if self.train_unsampled:
            alone = (Visit(client, receives=False, sends=False) for client in range(self.data.num_clients))
            named = {visit.client: named.get(visit.client, visit) for visit in alone}
        return [visit for visit in named.values() if self.clocks.learns(visit.client)]

    def rate_factor(self, client: int) -> float:
        return self.clocks.factors[client]

    # A visit --------------------------------------------------------------------------------------------------------

    def begin_visit(self, net: nn.Module, client: Client) -> dict[str, Any]:
        position = self.clocks.positions[client.index]
        if int(self.state_of(client).get("position", -1)) != position:
            self.begin_task(net, client, position)
            device = client.label_counts.device
            self.state_of(client)["position"] = torch.tensor(position, device=device)
            self.state_of(client)["clock"] = Clock().to_tensor(device)
            # The weights at the start of the task count as received, for hooks that compare the net with them.
            client.received_state.update({name: tensor.clone() for name, tensor in self.per_task_tensors(net).items()})
        elif position in client.tasks:
            refuse_another_visit(self.method, client)
        return {}

    def begin_task(self, net: nn.Module, client: Client, position: int) -> None:
        """A client's first visit in a task, ``net`` as received: the weights of single tasks get new values.

        These are the initial values in a random order, which is a random draw for any initialisation. Identical class layers
        hardly move apart in few rounds: they would be one layer for all tasks, and a task's gradients would undo what the body
        learned before.

        Args:
            position: position of the task in the client's sequence, from 0.
        """
        client.moments.clear()
        initial = tensors_of(self.method.net)
        for name, tensor in self.per_task_tensors(net).items():
            tensor.copy_(initial[name])
            if self.is_drawn_anew(name):
                stream = torch_stream(self.method.seed, position, client.index, f"fresh {name}")
                order = torch.randperm(tensor.numel(), generator=stream).to(tensor.device)
                tensor.copy_(tensor.flatten()[order].view_as(tensor))

    def end_task(self, net: nn.Module, client: Client, position: int) -> None:
        """A client's last visit in a task, after its fit: the task's weights are kept in ``client.tasks``."""
        client.tasks[position] = LearnedTask({name: tensor.clone() for name, tensor in self.per_task_tensors(net).items()})

    def per_task_tensors(self, net: nn.Module) -> State:
        """Weights and buffers of which each task has a copy."""
        constant = self.method.constant_names
        return {name: t for name, t in tensors_of(net).items() if self.is_per_task(name) and name not in constant}

    def is_per_task(self, name: str) -> bool:
        """Whether each task has a copy of a weight or buffer, which then stays with the client."""
        return any(fnmatch(name, pattern) for pattern in self.per_task)

    def is_personal(self, name: str) -> bool:
        return self.is_per_task(name)

    def is_drawn_anew(self, name: str) -> bool:
        """Whether every task begins with new values of a weight that each task has a copy of."""
        return any(fnmatch(name, pattern) for pattern in self.drawn_anew)

    def end_visit(self, net: nn.Module, client: Client) -> None:
        position = self.clocks.positions[client.index]
        loss = self.validation_loss(net, client, position)
        clock = Clock.from_tensor(self.state_of(client)["clock"]).tick(loss, self.patience, self.rate_divisor)
        self.state_of(client)["clock"] = clock.to_tensor(client.label_counts.device)
        comes_again = partial(is_visited_within, self.method, client)
        if self.clocks.is_last_visit(client.index, clock, (lambda _: True) if self.train_unsampled else comes_again):
            self.end_task(net, client, position)

    # Evaluation -----------------------------------------------------------------------------------------------------

    def task_weights(self, net: nn.Module, client: Client, position: int) -> State:
        """All weights and buffers of a client's model for a task that it learns, or has learned."""
        weights = tensors_of(net)
        if position != self.clocks.positions[client.index] and position in client.tasks:
            kept, of_task = client.tasks[position].tensors, self.per_task_tensors(net)
            weights |= {name: tensor for name, tensor in kept.items() if name in of_task}
        return weights

    def predict(
        self, net: nn.Module, client: Client, position: int, part: Literal["validation", "test"]
    ) -> tuple[Tensor, Tensor]:
        """A client's model on its samples of a task that it learns, or has learned.

        Args:
            net: the client's, at its present task.
            position: position of the task in the client's sequence.
            part: the samples.

        Returns:
            Logits (samples, classes of a task) in evaluation mode, and targets (samples,).
        """
        inputs, targets = self.data.evaluation.samples_at(self.data.streams.indices(client.index, position, part))

        def logits(frozen: nn.Module) -> Tensor:
            with parametrize.cached():  # composed weights, for all parts
                return predict_in_batches(frozen, self.data.eval_batch_size, inputs)

        return client.evaluate(self.task_weights(net, client, position), logits), targets

    def validation_loss(self, net: nn.Module, client: Client, position: int) -> float:
        """Mean loss on a client's validation samples of a task."""
        logits, targets = self.predict(net, client, position, "validation")
        counts = self.data.label_counts[client.index]  # those of ``client`` are flipped under LabelFlip, targets are not
        return float(self.method.loss(logits, targets, counts).mean())

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
        return replace(state, moments={}) if self.clocks.positions[client.index] in client.tasks else state

    def probe(self, net: nn.Module, client: Client) -> State:
        """The report of a client's visit to the federation: its clock and, if due, its accuracy on its tasks."""
        position, num_tasks = self.clocks.positions[client.index], self.data.streams.num_tasks
        accuracy = torch.full((num_tasks,), float("nan"), dtype=torch.float64, device=client.label_counts.device)
        if position in client.tasks or client.round % self.evaluate_every == 0:
            for seen in range(position + 1):
                if seen == position or seen in client.tasks:
                    logits, targets = self.predict(net, client, seen, "test")
                    accuracy[seen] = (logits.argmax(dim=1) == targets).double().mean()
        return {
            "client": torch.tensor(client.index),
            "rate_factor": self.state_of(client)["clock"][0],
            "task_accuracy": accuracy,
            "model_values": torch.tensor(self.num_values(net, client)),
        }

    # The clocks of all ----------------------------------------------------------------------------------------------

    def end_round(self, probes: Sequence[State]) -> None:
        """All clocks tick; clients that have finished go on to the next task."""
        for probe in probes:
            client = int(probe["client"])
            if not probe["task_accuracy"].isnan().all():
                self.task_accuracy[client, self.clocks.positions[client]] = probe["task_accuracy"].to(self.task_accuracy.device)
            self.model_values[client] = probe["model_values"]
        visited = [visit.client for visit in self.method.present_cohort]
        self.clocks.tick(visited, {int(probe["client"]): probe["rate_factor"] for probe in probes})
        self.clocks.go_on()
        self.follow_buffers()
