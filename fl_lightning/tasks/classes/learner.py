"""ClassLearner: one global model with classes that arrive task by task, and one head that all tasks share.

Fine-tuning as in J. Zhang, C. Chen, W. Zhuang, L. Lyu: TARGET, ICCV 2023, arXiv 2303.06937, and S. Babakniya et al.: MFCL,
NeurIPS 2023, arXiv 2311.07784. The head has a row for every class from the start, and the rows of the classes seen so far are
active: a growing head with constant shapes. Departures: new rows are uniform in +-1/sqrt(d) with bias 0, where TARGET's are in
+-sqrt(3/d) and MFCL's biases are drawn too; the rows of the first task are the net's.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from torch import Tensor, nn

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.checks import check_choice, check_whole
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.shards_of_tasks import ArrivedClasses
from fl_lightning.functional.stateless import tensors_of
from fl_lightning.functional.transfers import on_device
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import Batch, ClassProgress, Client, DataNeeds, Learner, Needs, State, Visit, overridden
from fl_lightning.protocol.learner import obstacle_to_streams
from fl_lightning.tasks.classes.growing_head import GrowingHead
from fl_lightning.tasks.classes.projection import without_projection
from fl_lightning.tasks.clock import TaskClocks

SoftmaxOver = Literal["new", "seen"]
_LEAKED = "classes that compete"  # in the carry of a client that has met some before their task


class ClassArguments(TypedDict, total=False):
    """The arguments of :class:`ClassLearner` by name and type, for a subclass's ``**common: Unpack[ClassArguments]``."""

    rounds_per_task: int
    softmax_over: SoftmaxOver


class ClassLearner(Learner):
    """Learns the tasks of ``data.tasks``, a ``ClassStream`` or ``DomainStream``; with its defaults it is fine-tuning.

    The method decides what goes through the server, ``FedProx(net, tasks=ClassLearner())``. ``data.tasks`` sets each client's
    samples in each task. ``data.clients_per_round`` of the clients that have joined take part in a round, or all of them if
    there are fewer; a fraction is of ``data.num_clients``. The net gives minus infinity for classes not seen yet, in training,
    evaluation and as a teacher. New values are drawn for the rows of a class, the same for all clients, when its task begins,
    from the second task on. With blurry borders, clients also train on samples of other tasks' classes. With ``softmax_over``
    new, the classes that a client has samples of then count as new; with ``seen``, the later classes that it has met count as
    seen. The net has a linear class layer, as all bundled nets have.

    Args:
        rounds_per_task: R, rounds after which a task is over.
        softmax_over: the classes that compete in the local loss: ``new``, those of the present task (TARGET, LANDER), which
            gives the rows of old ones no gradient, or all ``seen`` (MFCL), which pushes down classes without samples.

    Raises:
        ValueError: if a value is out of range.
    """

    needs = Needs(data=DataNeeds(arriving_classes=True))

    method: FederatedModule
    clocks: TaskClocks
    """Where the global model is in its sequence."""
    head: GrowingHead

    def __init__(self, rounds_per_task: int = 20, softmax_over: SoftmaxOver = "new") -> None:
        super().__init__()
        check_whole("model.tasks.rounds_per_task", rounds_per_task, at_least=1)
        check_choice("model.tasks.softmax_over", softmax_over, SoftmaxOver)
        self.rounds_per_task, self.softmax_over = rounds_per_task, softmax_over
        self._first_round_of_task: int | None = None  # None before any round

    def obstacle_to(self, method: Any) -> str | None:
        if (why := obstacle_to_streams(method)) is not None:
            return why
        if _keeps_personal_weights(method):
            return "keeps weights with each client, but one model learns the classes: use one that shares all, such as FedAvg"
        if changed := overridden(method, FederatedAlgorithm.client_loss, FederatedAlgorithm.client_step):
            return f"overrides {changed[0]}, but which classes compete is up to the task: use one that does not, such as FedAvg"
        return None

    def adapt_net(self, net: nn.Module) -> None:
        if self.method.federation is not None and (self.data.tasks is None or not self.data.tasks.global_model):
            raise ValueError(
                f"data.tasks is {self.data.tasks or 'null'}, but {type(self).__name__} learns classes as they arrive: give "
                "data.tasks a ClassStream"
            )
        self.head = GrowingHead(net)

    def with_server_parts(self, model: State) -> State:
        net = self.method.net
        return {**without_projection(model, net), **self.head.of(net)}

    def is_drawn_anew(self, name: str) -> bool:
        return name in self.head.names

    def begin_run(self) -> None:
        super().begin_run()
        num_tasks = 1 if self.method.federation is None else self.data.class_streams.num_tasks
        self.clocks = TaskClocks(1, num_tasks, self.rounds_per_task)
        if self.method.federation is not None and self.data.class_streams.blurry:
            self.unprotected = (*self.unprotected, "the classes that a client holds")

    def follow_buffers(self) -> None:
        """The clock on the host, for decisions there and for the data module, and the classes seen in the net."""
        self.clocks.read()
        self.data.present_shards.go_to([self.task] * self.data.num_clients)
        self.head.see(self.method.net, self.arrived.num_seen)

    def check_data(self) -> None:
        method = self.method
        if method.keeps_models:
            raise ValueError(
                f"model.personal is {list(method.personal)}, but {type(self).__name__} evaluates one model for all on the "
                "classes that have arrived: leave it out, and do not set model.batch_norm_buffers to local"
            )
        if self.softmax_over == "new" and self.data.class_streams.repeating:
            raise ValueError(
                f"model.tasks.softmax_over is new, but data.tasks is {self.data.tasks}, whose tasks have samples of earlier "
                "ones' classes: set it to seen"
            )
        if getattr(method.loss, "class_weights", None) is not None:
            raise ValueError(
                f"model.loss is {method.loss!r}, but which classes compete changes with data.tasks: leave class_weights out"
            )
        participation = self.data.participation
        for round in range(1, (participation.num_rounds or 0) + 1):
            participation.among(_num_there_at(self.data, (round - 1) // self.rounds_per_task)).cohort(round)

    # The clock ------------------------------------------------------------------------------------------------------

    @property
    def task(self) -> int:
        """Position of the present task, from 0."""
        return self.clocks.positions[0]

    @property
    def arrived(self) -> ArrivedClasses:
        """The classes of the present task, and of those before."""
        return self.data.class_streams.at(self.task)

    @property
    def is_over(self) -> bool:
        return self.clocks.has_had_all_rounds(0) and self.task == self.data.class_streams.num_tasks - 1

    def class_progress(self) -> ClassProgress:
        arrived = self.arrived
        is_over = self.clocks.has_had_all_rounds(0)
        return ClassProgress(self.task, is_over, self.rounds_per_task, arrived.num_old, arrived.num_seen)

    def begin_round(self, round: int) -> None:
        if self.clocks.has_had_all_rounds(0) and not self.is_over:
            self.end_task()
            self.clocks.go_on()
            self.follow_buffers()
            if self.arrived.num_seen > self.arrived.num_old:
                self.head.draw(self.arrived.new, self.method.seed, self.task)
        elif self.task == self.clocks.rounds[0] == 0:
            self.head.clear(self.arrived.num_seen)
        self._first_round_of_task = round - self.clocks.rounds[0]

    def end_task(self) -> None:
        """Work at the server with the model of a finished task, if another task follows."""

    def end_round(self, probes: Sequence[State]) -> None:
        self.head.see(self.method.net, self.arrived.num_seen)  # which clients can raise in their fits
        self.clocks.tick([0], {})

    def num_there(self, round: int) -> int:
        begun = self._first_round_of_task
        tasks_away = int(self.clocks.has_had_all_rounds(0)) if begun is None else (round - begun) // self.rounds_per_task
        return _num_there_at(self.data, self.task + tasks_away)

    def visits(self, visits: Sequence[Visit]) -> list[Visit]:
        """In a rehearsal, before clients that join in this round have samples: the others."""
        is_rehearsal = self._first_round_of_task is None
        return [visit for visit in visits if not is_rehearsal or self.data.num_train(visit.client) > 0]

    # A visit --------------------------------------------------------------------------------------------------------

    def client_loss(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        return self.sample_losses(net, batch, client.label_counts, client)

    def sample_losses(self, net: nn.Module, samples: Batch, label_counts: Tensor, client: Client) -> Tensor:
        """The loss that clients minimise, (B,), on any samples: those of the batch and others that a learner adds.

        Args:
            label_counts: (C,), of all samples of the client.
        """
        return self.logits_loss(net(samples.inputs), samples.targets, label_counts, client)

    def logits_loss(self, logits: Tensor, targets: Tensor, label_counts: Tensor, client: Client) -> Tensor:
        """Among the classes that compete."""
        columns = self.competing_classes(client)
        return self.method.loss(logits[:, columns], places_among(columns, targets), label_counts[columns])

    def competing_classes(self, client: Client) -> slice | Tensor:
        """Columns of the classes that compete in a client's loss, ascending."""
        if _LEAKED in client.carry:
            return client.carry[_LEAKED]
        return self.arrived.new if self.softmax_over == "new" else slice(0, self.arrived.num_seen)

    @property
    def prepares(self) -> bool:
        return self.data.class_streams.blurry or bool(overridden(self, ClassLearner.begin_visit))

    def begin_visit(self, net: nn.Module, client: Client) -> dict[str, Any]:
        streams = self.data.class_streams
        if not streams.blurry:
            return {}
        seen: Any = self.competing_classes(client)
        leaks = streams.classes_held if self.softmax_over == "new" else streams.leaked_classes
        columns = sorted({*range(seen.start, seen.stop), *leaks(client.index, self.task)})
        if columns[-1] >= self.arrived.num_seen:
            self.head.see(net, len(self.data.classes))
        return {_LEAKED: on_device(columns, client.label_counts.device)}


def frozen_copy(method: FederatedModule) -> State:
    """All weights and buffers of a method's net that are not constant, copied: a teacher."""
    return {name: tensor.clone() for name, tensor in tensors_of(method.net).items() if name not in method.constant_names}


def places_among(columns: slice | Tensor, targets: Tensor) -> Tensor:
    """The positions of targets, (B,), among their columns, which are ascending."""
    return targets - columns.start if isinstance(columns, slice) else (columns < targets[:, None]).sum(dim=1)


def _keeps_personal_weights(method: Any) -> bool:
    """Whether any weights or models of a method stay with clients."""
    kind, ours = method if isinstance(method, type) else type(method), FederatedAlgorithm
    has_models = kind.fine_tuned or kind.has_global_model is not ours.has_global_model
    return bool(kind.personal) or has_models or bool(overridden(kind, ours.is_personal, ours.personal_model))


def _num_there_at(data: FederatedDataModule, position: int) -> int:
    """How many clients have joined by the task at a position, or by the last task."""
    return data.class_streams.num_there(min(position, data.class_streams.num_tasks - 1))
