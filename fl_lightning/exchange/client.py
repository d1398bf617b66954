"""A client during its visit."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from fl_lightning.exchange.batch import Batch
from fl_lightning.exchange.client_state import LearnedTask
from fl_lightning.exchange.federation import ClientBatches
from fl_lightning.functional.aggregation import State

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


@dataclass
class Client:
    """What a method's hooks know of the client they work for.

    In the hooks of a local step (``client_step`` and what it calls) under the engines ``vectorized`` and ``captured``, the
    numbers are tensors without dimensions, whatever their annotation says: they can be calculated with, but not turned into
    Python numbers.
    """

    index: int
    round: int  # counted from 1
    num_train: int  # n_k, training samples
    num_steps: int  # local steps of this visit
    label_counts: Tensor  # (C,), training and validation samples
    train_label_counts: Tensor  # (C,), training samples alone
    received: tuple[Tensor, ...]  # the weights it got, in the order of net.parameters(), without gradient
    received_state: State  # the same by name, and the buffers
    data: ClientBatches | None  # serves its samples; None in a local step, which sees its batch alone
    differentiate: Differentiate
    evaluate: Callable[[State, Callable[[Any], Tensor]], Tensor]
    """What a function of the net gives with other weights and buffers in it, in evaluation mode, without gradient."""
    apply: Callable[[Sequence[Tensor]], None]  # the local optimizer's step with these gradients, once a local step, at its end
    estimate: GradientEstimator = mean_gradient
    sends: bool = True  # in this visit; else it trains for itself
    expected_batch_size: float | None = None  # of Poisson batches; None: batches have known sizes
    step: int | Tensor = 0  # of this visit, counted from 0; in the hooks of a local step
    learning_rate: float | Tensor = 0.0  # of the local optimizer in this visit; set once client_start is done
    resting: Sequence[str] = ()  # weights that the present local step leaves as they are
    # Tensors by name, or by group and name, as in state["variate"]["classifier.weight"].
    broadcast: dict[str, Any] = field(default_factory=dict)  # what came down in addition to the weights
    carry: dict[str, Any] = field(default_factory=dict)  # what client_start made; constant during the fit
    state: dict[str, Any] = field(default_factory=dict)  # persists until the client's next visit
    moments: dict[int, State] = field(default_factory=dict)  # of its optimizer, where they persist; not in a local step
    tasks: dict[int, LearnedTask] = field(default_factory=dict)  # that it has learned, by position; not in a local step

    def count_as_received(self, tensors: State, net: nn.Module) -> None:
        """Have hooks that compare the client's net with what it received find copies of these tensors there.

        Args:
            tensors: weights and buffers by name; those that are missing stay as they are.
            net: the client's, whose order of weights is that of ``received``.
        """
        self.received_state = self.received_state | {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self.received = tuple(self.received_state[name] for name, _ in net.named_parameters())

    def carry_along(self, carry: dict[str, Any]) -> None:
        """Have hooks find this in ``client.carry``."""
        self.carry = carry

    def begin_fit(self, learning_rate: float, apply: Callable[[Sequence[Tensor]], None] | None = None) -> None:
        """Begin its local steps, once ``client_start`` is done.

        Args:
            apply: what ``client.apply`` does in them; None: as before.
        """
        self.learning_rate = learning_rate
        if apply is not None:
            self.apply = apply

    def begin_step(self, step: int, resting: Sequence[str]) -> None:
        """Begin a local step, counted from 0, that leaves some weights as they are."""
        self.step, self.resting = step, resting

    def keep(self, state: dict[str, Any]) -> None:
        """Have this in the place of what it kept for its method."""
        self.state = state

    def keep_moments(self, moments: dict[int, State]) -> None:
        """Have its optimizer begin its next visit with these."""
        self.moments = moments

    def forget_moments(self) -> None:
        """Have its optimizer begin anew, where its moments persist."""
        self.moments = {}

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
