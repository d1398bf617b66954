"""ClassLearner: one global model whose classes arrive task by task, with one head that all tasks share.

Fine-tuning as in J. Zhang, C. Chen, W. Zhuang, L. Lyu: TARGET, ICCV 2023, arXiv 2303.06937, and S. Babakniya et al.: MFCL,
NeurIPS 2023, arXiv 2311.07784. The head has a row for every class from the start, of which those seen so far take part: the
same as a head that grows, with shapes that never change. Departures: new rows are uniform in +-1/sqrt(d) with bias 0, where
TARGET's are in +-sqrt(3/d) and MFCL's biases are drawn too.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.checks import check_choice, check_range
from fl_lightning.continual.checkpointed_tasks import check_same_tasks, save_tasks
from fl_lightning.continual.composition import check_composed, keeps_personal_weights, obstacle
from fl_lightning.data.participation import Participation
from fl_lightning.exchange import Batch, ClassProgress, Client, Needs
from fl_lightning.functional.aggregation import State
from fl_lightning.hooks import overridden
from fl_lightning.module import FederatedModule, Net
from fl_lightning.random_streams import torch_stream

SoftmaxOver = Literal["new", "seen"]
_SEEN = "num_seen"  # the net's buffer, which travels as a counter of BatchNorm does


class ClassLearner(FederatedModule):
    """Learns the tasks of ``data.tasks``, a ``ClassStream`` or ``DomainStream``; with its defaults fine-tuning by FedAvg.

    ``data.tasks`` says which samples a client has in each task. Of the clients that have joined by then
    ``data.clients_per_round`` take part in a round, or all where they are fewer. The net gives minus infinity for classes not
    seen yet, in training, evaluation and as a teacher; rows of the head are drawn anew, for all clients alike, when their task
    begins.

    Args:
        net: with a linear class layer called ``classifier``, as all of ours.
        rounds_per_task: R, rounds after which a task is over.
        softmax_over: the classes that compete in the local loss: ``new``, those of the present task (TARGET, LANDER), which
            leaves the rows of old ones alone, or all ``seen`` (MFCL), which pushes those down that have no samples any more.

    Raises:
        ValueError: if a value is out of range.
    """

    needs = Needs(arriving_classes=True)

    position: Tensor  # scalar, of the present task, from 0
    rounds_in_task: Tensor  # scalar, rounds of it that are over

    def __init_subclass__(cls, **keywords: Any) -> None:
        check_composed(cls, ClassLearner, cls.obstacle_to)
        super().__init_subclass__(**keywords)

    @classmethod
    def obstacle_to(cls, federation: type[FederatedModule]) -> str | None:
        """Why this learner does not combine with a federation, and what to use; None: it does."""
        if (why := obstacle(federation)) is not None:
            return why
        if keeps_personal_weights(federation):
            return "keeps weights with each client, but one model learns the classes: use one that shares all, such as FedAvg"
        if changed := overridden(federation, FederatedAlgorithm.client_loss, FederatedAlgorithm.client_step):
            return f"overrides {changed[0]}, but which classes compete is up to the task: use one that does not, such as FedAvg"
        return None

    def __init__(self, net: Net, rounds_per_task: int = 20, softmax_over: SoftmaxOver = "new", **common: Any) -> None:
        super().__init__(net, **common)
        check_range("model.rounds_per_task", rounds_per_task, at_least=1)
        check_choice("model.softmax_over", softmax_over, SoftmaxOver)
        self.rounds_per_task, self.softmax_over = rounds_per_task, softmax_over
        for name in ("position", "rounds_in_task"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64))
        self._first_round_of_task: int | None = None  # None before any round

    def adapt_net(self) -> None:
        super().adapt_net()
        head = getattr(self.net, "classifier", None)
        if not isinstance(head, nn.Linear):
            raise ValueError(
                f"model.net is {type(self.net).__name__}, whose classifier is "
                f"{'missing' if head is None else type(head).__name__}, must be a linear layer with a row for each class: call "
                "the class layer classifier"
            )
        self._head_names = frozenset(head.state_dict(prefix="classifier."))
        self.net.register_buffer(_SEEN, torch.zeros((), dtype=torch.int64, device=head.weight.device))
        self.net.register_forward_hook(_without_unseen)

    def begin_with(self, stored: State) -> State:
        return {**super().begin_with(stored), _SEEN: self.net.get_buffer(_SEEN)}

    def is_constant(self, name: str) -> bool:
        return super().is_constant(name) and name not in self._head_names  # whose rows are drawn

    def configure_model(self) -> None:
        if self.has_data and (self.data.tasks is None or not self.data.tasks.global_model):
            raise ValueError(
                f"data.tasks is {self.data.tasks or 'null'}, but {type(self).__name__} learns classes as they arrive: give "
                "data.tasks a ClassStream"
            )
        is_new = not hasattr(self, "_trained_names")
        super().configure_model()
        if is_new and self.has_data:
            self.read_clock()
            self._see()

    def check_data(self) -> None:
        super().check_data()
        if self.keeps_models:
            raise ValueError(
                f"model.personal is {list(self.personal)}, but {type(self).__name__} evaluates one model for all on the "
                "classes that have arrived: leave it out, and do not set model.batch_norm_buffers to local"
            )
        if self.softmax_over == "new" and self.data.class_streams.mixed:
            raise ValueError(
                f"model.softmax_over is new, but data.tasks is {self.data.tasks}, whose tasks have samples of earlier ones' "
                "classes: set it to seen"
            )
        self.read_clock()
        for round in range(1, (self.data.participation.num_rounds or 0) + 1):
            self._participation_at((round - 1) // self.rounds_per_task).cohort(round)

    # The clock ------------------------------------------------------------------------------------------------------

    def read_clock(self) -> None:
        """The clock on the host, for what is decided there, and for the data module."""
        self._position, self._rounds_in_task = int(self.position), int(self.rounds_in_task)
        self.data.present_shards.go_to([self._position] * self.data.num_clients)

    @property
    def task(self) -> int:
        """Position of the present task, from 0."""
        return self._position

    @property
    def task_is_over(self) -> bool:
        """Whether the present task has had all its rounds."""
        return self._rounds_in_task >= self.rounds_per_task

    @property
    def is_last_round(self) -> bool:
        """Whether the present round is the last one of its task."""
        return self._rounds_in_task == self.rounds_per_task - 1

    @property
    def is_over(self) -> bool:
        return self.task_is_over and self._position == self.data.class_streams.num_tasks - 1

    @property
    def new_classes(self) -> slice:
        """Columns of the classes that are new in the present task; all of them where none is."""
        streams = self.data.class_streams
        return slice(streams.first_new(self._position), streams.num_seen[self._position])

    @property
    def num_old(self) -> int:
        """o, classes seen before the present task."""
        return self.data.class_streams.num_seen[self._position - 1] if self._position > 0 else 0

    def class_progress(self) -> ClassProgress:
        return ClassProgress(self.task, self.task_is_over, self.rounds_per_task, self.num_old)

    def start_round(self, round: int) -> None:
        super().start_round(round)
        if self.task_is_over and not self.is_over:
            self.end_task()
            self.position += 1
            self.rounds_in_task.zero_()
            self.read_clock()
            self.begin_task()
        self._first_round_of_task = round - self._rounds_in_task

    def end_task(self) -> None:
        """Work at the server with the model of a task that is over, and another one follows."""

    def begin_task(self) -> None:
        """Work at the server before the first round of a later task: its rows of the head are drawn."""
        if self._see():
            self._draw_rows(self.new_classes)

    def _see(self) -> bool:
        """Have the net tell the classes seen apart; whether some of them are new."""
        seen, count = self.net.get_buffer(_SEEN), self.data.class_streams.num_seen[self._position]
        are_new = count > int(seen)
        seen.fill_(count)
        return are_new

    @torch.no_grad()
    def _draw_rows(self, rows: slice) -> None:
        """Not before, as weight decay would shrink them."""
        head: nn.Linear = self.net.get_submodule("classifier")  # pyright: ignore[reportAssignmentType]
        stream = torch_stream(self.seed, self._position, -1, "rows of the head")
        drawn = torch.rand(head.weight[rows].shape, generator=stream, dtype=torch.float64)
        head.weight[rows] = ((2 * drawn - 1) / head.in_features**0.5).to(head.weight)
        if head.bias is not None:
            head.bias[rows] = 0

    def after_server_step(self, probes: list[dict[str, Tensor]]) -> None:
        super().after_server_step(probes)
        self.rounds_in_task += 1
        self.read_clock()

    def after_undo(self) -> None:
        super().after_undo()
        self.read_clock()

    def participation_in(self, round: int) -> Participation:
        begun = self._first_round_of_task
        tasks_away = int(self.task_is_over) if begun is None else (round - begun) // self.rounds_per_task
        return self._participation_at(self._position + tasks_away)

    def _participation_at(self, position: int) -> Participation:
        """That of the task at a position, or of the last task."""
        streams = self.data.class_streams
        return self.data.participation.among(streams.num_there(min(position, streams.num_tasks - 1)))

    def sampled_clients(self, round: int) -> list[int]:
        drawn = super().sampled_clients(round) if self.privacy is not None else self.participation_in(round).cohort(round)
        if self._first_round_of_task is None:  # for a rehearsal, before clients that may join in this round have samples
            drawn = [client for client in drawn if self.data.num_train(client) > 0]
        return drawn

    # A visit --------------------------------------------------------------------------------------------------------

    def client_loss(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        return self.sample_losses(net, batch, client.label_counts, client)

    def sample_losses(self, net: nn.Module, samples: Batch, label_counts: Tensor, client: Client) -> Tensor:
        """What clients minimise, (B,), on any samples: those of the batch, and others where a method has some.

        Args:
            label_counts: (C,), of all that the client has.
        """
        return self.logits_loss(net(samples.inputs), samples.targets, label_counts)

    def logits_loss(self, logits: Tensor, targets: Tensor, label_counts: Tensor) -> Tensor:
        """Among the classes that compete."""
        columns = self.new_classes if self.softmax_over == "new" else slice(0, self.new_classes.stop)
        return self.loss(logits[:, columns], targets - columns.start, label_counts[columns])

    def is_last_visit(self, client: Client) -> bool:
        """Whether a client that is at this point is not in a later cohort before it moves to another task."""
        rounds = self.rounds_per_task * (1 + self.data.class_streams.stays(client.index, self._position))
        last = client.round + rounds - self._rounds_in_task - 1
        if (named := self.data.participation.num_rounds) is not None:
            last = min(last, named)
        return not any(client.index in self.sampled_clients(round) for round in range(client.round + 1, last + 1))

    # Evaluation and checkpoints -------------------------------------------------------------------------------------

    def load_state_dict(self, *arguments: Any, **keywords: Any) -> Any:
        loaded = super().load_state_dict(*arguments, **keywords)
        if self.has_data:
            self.read_clock()  # evaluations are of the classes seen
        return loaded

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        save_tasks(checkpoint, self._streams_in_short())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.has_data:
            check_same_tasks(checkpoint, self._streams_in_short())
        super().on_load_checkpoint(checkpoint)

    def _streams_in_short(self) -> dict[str, str]:
        """What a run that goes on, or is evaluated, must share with the one that wrote the checkpoint."""
        streams = self.data.class_streams
        return {"data.tasks": " | ".join(streams.names), "the digest of all clients' samples": streams.digest()}


def frozen_copy(net: nn.Module) -> State:
    """All weights and buffers of a net, copied: a teacher."""
    return {name: tensor.detach().clone() for name, tensor in (*net.named_parameters(), *net.named_buffers())}


def _without_unseen(net: nn.Module, inputs: Any, logits: Tensor) -> Tensor:
    """A hook on a net's outputs: classes not seen yet get minus infinity."""
    unseen = torch.arange(logits.shape[-1], device=logits.device) >= net.get_buffer(_SEEN)
    return logits.masked_fill(unseen, float("-inf"))
