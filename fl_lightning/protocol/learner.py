"""Learner: the part of a method that learns a stream of tasks, the argument ``tasks`` of every method; and its progress."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from fl_lightning.functional.aggregation import State
from fl_lightning.functional.exact_buffers import ExactBuffers
from fl_lightning.functional.fisher import empirical_fisher
from fl_lightning.protocol.batch import Batch
from fl_lightning.protocol.client import Client, Gradients, Visit
from fl_lightning.protocol.client_state import ClientState
from fl_lightning.protocol.cohort import Inputs
from fl_lightning.protocol.hooks import follow_keywords, overridden, refuse_left_out, warn_of_misspelt
from fl_lightning.protocol.needs import Needs
from fl_lightning.protocol.upload import Reduction, Upload


@dataclass(frozen=True)
class TaskProgress:
    """Progress of clients that each learn their own sequence of T tasks.

    Args:
        positions: position of each client's present task in its sequence, from 0; T: it has learned all.
        accuracy: (N, T, T), of each client at each position on the task of each position, NaN if it was not measured.
        model_values: (N,), number of values in each client's model.
    """

    positions: list[int]
    accuracy: Tensor
    model_values: Tensor


@dataclass(frozen=True)
class ClassProgress:
    """Progress of a global model with classes that arrive task by task.

    Args:
        task: position of the present task, from 0.
        is_over: whether it has had all its rounds.
        rounds_per_task: rounds after which a task is over.
        num_old: classes seen before the present task.
        num_seen: classes seen up to and including it.
    """

    task: int
    is_over: bool
    rounds_per_task: int
    num_old: int
    num_seen: int


class LocalLearning(ExactBuffers):
    """The hooks of a learner of tasks at a client, called with the hooks of its method."""

    needs: Needs = Needs()
    """The learner's requirements on the engine and the data, in addition to its method's."""

    extended: Sequence[str] = ()
    """Names of the hooks of a class that its subclasses must call where they override them."""

    unprotected: Sequence[str] = ()
    """Names of what leaves clients without DP-SGD's noise, in addition to the method's."""

    method: Any = None
    """The method that it belongs to, with the net, the data, the seed and the loss; None before :meth:`Learner.belong_to`."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "__init__" in vars(cls):
            follow_keywords(cls.__init__)
        bases = [base for base in cls.__mro__[1:] if issubclass(base, LocalLearning)]
        refuse_left_out(cls, {name for base in bases for name in vars(base).get("extended", ())}, bases[0].__name__)
        warn_of_misspelt(cls, {name for base in bases for name in vars(base) if not name.startswith("_")})

    @property
    def data(self) -> Any:
        """The federation of the method."""
        return self.method.data

    @staticmethod
    def state_of(client: Client) -> dict[str, Any]:
        """The learner's part of a client's state, ``client.state["tasks"]``, apart from the names of the method."""
        return client.state.setdefault("tasks", {})

    # Hooks of a visit, in their order -------------------------------------------------------------------------------

    def is_personal(self, name: str) -> bool:
        """Whether a weight or buffer stays with its client."""
        return False

    def is_drawn_anew(self, name: str) -> bool:
        """Whether a weight changes even if it is not trained, and so must be stored."""
        return False

    def rate_factor(self, client: int) -> float:
        """Factor on a client's learning rate, in addition to the method's."""
        return 1.0

    def begin_visit(self, net: nn.Module, client: Client) -> dict[str, Any]:
        """Called before ``client_start``; the result is in ``client.carry`` there, and during the fit."""
        return {}

    def client_loss(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        """One value per sample, (B,), of a method that does not replace the loss."""
        return self.logits_loss(net(batch.inputs), batch.targets, client.label_counts, client)

    def logits_loss(self, logits: Tensor, targets: Tensor, label_counts: Tensor, client: Client) -> Tensor:
        """The loss of a net on samples of a client, (B,); ``label_counts``, (C,), are of all its samples."""
        return self.method.loss(logits, targets, label_counts)

    def client_penalty(self, net: nn.Module, client: Client) -> Tensor | float:
        """A scalar that does not depend on data, added to the method's."""
        return 0.0

    def client_gradients(self, net: nn.Module, batch: Batch, client: Client) -> Gradients:
        """Gradients of a method that does not replace them: of its mean loss and all penalties, and the mean loss.

        For learners that follow or change the gradient of each local step.
        """
        return objective_gradients(self.method, net, batch, client)

    def end_visit(self, net: nn.Module, client: Client) -> None:
        """Called after the fit, before ``client_result``."""

    def upload(self, net: nn.Module, client: Client) -> Upload:
        """Uploads of a client in addition to the method's ``client_result``."""
        return {}

    def probe(self, net: nn.Module, client: Client) -> dict[str, Tensor]:
        """Values of a visit for the server, in addition to the method's ``probe``."""
        return {}

    def kept_state(self, client: Client, state: ClientState) -> ClientState:
        """The part of the method's ``kept_state`` that stays with a client."""
        return state

    # What hooks and engines ask for ---------------------------------------------------------------------------------

    def fisher(self, net: nn.Module, client: Client) -> State:
        """The empirical Fisher information of the trained weights on a client's samples, by name."""
        return empirical_fisher(
            net, lambda logits, targets: self.logits_loss(logits, targets, client.label_counts, client), client.samples()
        )

    @property
    def prepares(self) -> bool:
        """Whether :meth:`begin_visit` does anything."""
        return bool(overridden(self, LocalLearning.begin_visit))


class Learner(LocalLearning):
    """The part of a method that learns tasks. The method calls these hooks, in the order of a round, next to its own.

    With its defaults it learns no tasks; every method has this learner by default. Buffers are state of the server:
    checkpoints contain them, and an undone round restores them.
    """

    _has_begun = False

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_post_hook(_follow_buffers)  # pyright: ignore[reportUnknownMemberType]

    def belong_to(self, method: nn.Module) -> None:
        """Become part of a method.

        Raises:
            ValueError: if the two do not combine, or the learner is part of another method.
        """
        if self.method is not None:
            raise ValueError(
                f"model.tasks is {type(self).__name__}, which already belongs to another method: give each method its own"
            )
        if (why := self.obstacle_to(method)) is not None:
            raise ValueError(f"model.tasks is {type(self).__name__}, but {type(method).__name__} {why}")
        vars(self)["method"] = method  # which is not a submodule

    def obstacle_to(self, method: Any) -> str | None:
        """The reason why it does not combine with a method, or its class, and what to use; None: it does."""
        return None

    # Before the first round -----------------------------------------------------------------------------------------

    def adapt_net(self, net: nn.Module) -> None:
        """Change the net once it is built, after the method has."""

    def with_server_parts(self, model: State) -> State:
        """A client's model after its fit, or the net of another run, by name, with the parts that only the server sets."""
        return model

    def configure(self) -> None:
        """Begin once the net is final, or continue in a fit from a checkpoint."""
        if not self._has_begun:
            self.begin_run()
            self._has_begun = self.method.federation is not None  # else for use without data
        _follow_buffers(self)

    def begin_run(self) -> None:
        """Make the state of the server, such as buffers, once for all fits. There is no data if only the net is used."""

    def follow_buffers(self) -> None:
        """Update what depends on the buffers: as a fit begins, from a checkpoint, or as before an undone round."""

    def check_data(self) -> None:
        """Refuse data by name.

        Raises:
            ValueError: with the cure.
        """

    # Hooks of the server, in the order of a round -------------------------------------------------------------------

    def begin_round(self, round: int) -> None:
        """At the server, before ``start_round``, for example between two tasks: the net holds the global model."""

    def num_there(self, round: int) -> int | None:
        """The number of clients that have joined by a round, the first ones; None: all from the start."""
        return None

    def visits(self, visits: Sequence[Visit]) -> list[Visit]:
        """The clients of a round, from the method's ``cohort`` and others."""
        return list(visits)

    def broadcast(self, client: int) -> dict[str, Any]:
        """Tensors sent down to a client in addition to the weights and the method's ``broadcast``."""
        return {}

    def receive(self, reduced: Reduction) -> None:
        """At the server, before ``aggregate``: the reduced results of :meth:`upload`."""

    def end_round(self, probes: Sequence[State]) -> None:
        """At the server, after ``after_server_step``."""

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to learn, which ends a fit before its last round."""
        return False

    # What is shown --------------------------------------------------------------------------------------------------

    def task_progress(self) -> TaskProgress | None:
        """The clients' progress in their sequences of tasks; None: they learn none."""
        return None

    def class_progress(self) -> ClassProgress | None:
        """The global model's progress in tasks with arriving classes; None: it learns none."""
        return None

    def attention_tensors(self) -> Mapping[str, str]:
        """Layers with attention to tasks of other clients: each layer's name, and that of its attention in a ``LearnedTask``.

        Attention is (F,) or longer, a value for each row of that task's ``known``.
        """
        return {}

    def nearest_mean_logits(self, inputs: Inputs) -> Tensor | None:
        """(n, C), logits of samples from the classes' mean features; None: the server has no such means."""
        return None


def _follow_buffers(learner: Learner, keys: Any = None) -> None:
    """A hook on a learner that has loaded a state; there is nothing to follow where only the net is used."""
    if learner.method.federation is not None:
        learner.follow_buffers()


def objective_gradients(
    method: Any, net: nn.Module, batch: Batch, client: Client, at: Sequence[Tensor] | None = None, buffers: State | None = None
) -> Gradients:
    """Gradients of a method's mean loss and all penalties, and that mean; ``at`` and ``buffers`` as in a gradient estimator."""
    losses, penalty = partial(method.client_loss, net, batch, client), partial(method.total_penalty, net, client)
    return client.estimate(net, batch, client, losses, penalty, at=at, buffers=buffers)


def obstacle_to_streams(method: Any) -> str | None:
    """The reason why a method, or its class, takes no learner of tasks, and what to use; None: it takes one."""
    if method.needs.data.task_streams or method.needs.data.arriving_classes:
        return "learns tasks itself: use a method that learns none, such as FedAvg"
    if method.needs.data.public_samples:
        return "trains on public samples, which task streams do not have: use a method without them, such as FedAvg"
    return None
