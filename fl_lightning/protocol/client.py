"""A client during its visit."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self

from torch import Tensor, nn

from fl_lightning.functional.aggregation import State
from fl_lightning.protocol.batch import Batch
from fl_lightning.protocol.client_state import LearnedTask
from fl_lightning.protocol.federation import ClientBatches

Objective = Callable[[], tuple[Tensor, Tensor]]  # what is minimised, and the loss to report
Losses = Callable[[], Tensor]  # one value a sample, (B,)
Penalty = Callable[[], Tensor | float]
Gradients = tuple[Sequence[Tensor], Tensor]  # by the trainable weights, in order, and the mean loss to report


class Differentiate(Protocol):
    """Gradients of an objective by the trainable weights, in order, and the loss to report."""

    def __call__(self, objective: Objective, at: Sequence[Tensor] | None = None, buffers: State | None = None) -> Gradients:
        """Differentiate, with another model in the net where one is given.

        Args:
            objective: gives what is minimised, and the loss to report.
            at: trainable weights that the net holds meanwhile, in order; None: the net's.
            buffers: that it holds meanwhile, by name; the dict has what became of them afterwards, the net's stay as they are.
                None: the net's.
        """
        ...


class Visit(NamedTuple):
    """One client's part in a round.

    A client that does not receive goes on from the weights that it kept (``Needs.client_weights``), at its first visit from the
    global ones; one that does not send trains for itself.
    """

    client: int
    receives: bool = True
    sends: bool = True


class GradientEstimator(Protocol):
    """How a client's gradient is made of its samples."""

    def __call__(
        self,
        net: nn.Module,
        batch: Batch,
        client: "Client",
        losses: Losses,
        penalty: Penalty | None = None,
        at: Sequence[Tensor] | None = None,
        buffers: State | None = None,
    ) -> Gradients:
        """Gradients of the mean of ``losses`` on a batch plus the penalty.

        Args:
            net: whose losses these are.
            losses: of the samples, (B,).
            penalty: a scalar that depends on no data; None: none.
            at: trainable weights to take them at, in order; None: the net's.
            buffers: likewise by name, with what became of them afterwards; None: the net's.
        """
        ...


def mean_gradient(
    net: nn.Module,
    batch: Batch,
    client: "Client",
    losses: Losses,
    penalty: Penalty | None = None,
    at: Sequence[Tensor] | None = None,
    buffers: State | None = None,
) -> Gradients:
    """The estimator without privacy: the gradient of the mean over the samples that count."""

    def objective() -> tuple[Tensor, Tensor]:
        loss = batch.mean(losses())
        return (loss if penalty is None else loss + penalty()), loss

    return client.differentiate(objective, at=at, buffers=buffers)


@dataclass(frozen=True)
class Client:
    """What a method's hooks know of the client they work for, and what a local step can use.

    In the hooks of a local step (``client_step`` and what it calls) under the engines ``vectorized`` and ``captured``, the
    numbers are tensors without dimensions, whatever their annotation says: they can be calculated with, but not turned into
    Python numbers. Hooks put what they keep into the dicts ``state`` and ``tasks``.
    """

    index: int
    round: int  # counted from 1
    num_train: int  # n_k, training samples
    num_steps: int  # local steps of this visit
    label_counts: Tensor  # (C,), training and validation samples
    train_label_counts: Tensor  # (C,), training samples alone
    weight_names: Sequence[str]  # in the order of net.parameters()
    received_state: State  # weights and buffers that it got, by name, without gradient
    data: ClientBatches | None  # serves its samples; None in a local step, which sees its batch alone
    differentiate: Differentiate
    evaluate: Callable[[State, Callable[[Any], Tensor]], Tensor]
    """What a function of the net gives with other weights and buffers in it, in evaluation mode, without gradient."""
    apply: Callable[[Sequence[Tensor]], None]  # the local optimizer's step with these gradients, once a local step, at its end
    estimate: GradientEstimator = mean_gradient
    sends: bool = True  # in this visit; else it trains for itself
    expected_batch_size: float | None = None  # of Poisson batches; None: batches have known sizes
    step: int | Tensor = 0  # of this visit, counted from 0; in the hooks of a local step
    learning_rate: float | Tensor = 0.0  # of the local optimizer in this visit, once client_start is done
    resting: Sequence[str] = ()  # weights that the present local step leaves as they are
    # Lambdas, as a compiled local step makes a client, and the compiler knows no dict[str, Any]().
    # Tensors by name, or by group and name, as in state["variate"]["classifier.weight"].
    broadcast: dict[str, Any] = field(default_factory=lambda: {})  # what came down in addition to the weights
    carry: dict[str, Any] = field(default_factory=lambda: {})  # what client_start made; constant during the fit
    state: dict[str, Any] = field(default_factory=lambda: {})  # persists until the client's next visit
    # Not in a local step: the moments of its optimizer, where they persist, and the tasks that it has learned, by position.
    moments: dict[int, State] = field(default_factory=lambda: {})
    tasks: dict[int, LearnedTask] = field(default_factory=lambda: {})

    @property
    def received(self) -> tuple[Tensor, ...]:
        """The weights that it got, in the order of ``net.parameters()``, without gradient."""
        return tuple(self.received_state[name] for name in self.weight_names)

    def having(self, **changes: Any) -> Self:
        """The same client with other facts: ``dataclasses.replace`` in a tenth of the time, as each local step needs one."""
        client = object.__new__(type(self))
        vars(client).update(vars(self), **changes)
        return client

    def batches(self) -> Iterator[Batch]:
        """This visit's batches, from the start, the same at every call."""
        return self._samples().batches(self.index, self.round, self.num_steps)

    def epoch(self, purpose: str) -> Iterator[Batch]:
        """One pass over its training samples in an order that the purpose names, short batches filled up."""
        return self._samples().epoch(self.index, self.round, purpose)

    def samples(self) -> Iterator[Batch]:
        """Its training samples, each once and nothing about them random."""
        return self._samples().client_samples(self.index)

    def _samples(self) -> ClientBatches:
        if self.data is None:
            raise RuntimeError("client.batches, epoch or samples inside a local step: a local step sees its batch alone")
        return self.data
