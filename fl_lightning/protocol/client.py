"""A client during its visit, and the protection of its samples."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self

from torch import Tensor, nn

from fl_lightning.functional.aggregation import State
from fl_lightning.protocol.batch import Batch
from fl_lightning.protocol.client_state import LearnedTask
from fl_lightning.protocol.federation import ClientBatches
from fl_lightning.protocol.upload import Upload

Objective = Callable[[], tuple[Tensor, Tensor]]  # the objective to minimise, and the loss to report
Losses = Callable[[], Tensor]  # one value per sample, (B,)
Penalty = Callable[[], Tensor | float]
Gradients = tuple[Sequence[Tensor], Tensor]  # by the trainable weights, in order, and the mean loss to report


class Differentiate(Protocol):
    """Gradients of an objective by the trainable weights, in order, and the loss to report."""

    def __call__(self, objective: Objective, at: Sequence[Tensor] | None = None, buffers: State | None = None) -> Gradients:
        """Differentiate, with another model in the net if one is given.

        Args:
            objective: returns the value to minimise, and the loss to report.
            at: trainable weights that the net holds meanwhile, in order; None: the net's.
            buffers: buffers that it holds meanwhile, by name; the dict gets their new values, and the net's do not change.
                None: the net's.
        """
        ...


class Visit(NamedTuple):
    """One client's part in a round.

    A client that does not receive continues from its stored weights (``Needs.client_weights``), or from the global ones at its
    first visit. A client that does not send trains for itself. A slow one can take fewer local steps than its method asks for.
    """

    client: int
    receives: bool = True
    sends: bool = True
    num_steps: int | None = None  # maximum; None: as many as the method asks for
    broadcast: dict[str, Any] | None = None  # what the method sends down in addition to the weights; None: it is asked


class GradientEstimator(Protocol):
    """The way a client's gradient is computed from its samples."""

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
            penalty: a scalar that does not depend on data; None: none.
            at, buffers: as for :class:`Differentiate`.
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
    """A method's access to the client of a visit, in hooks and in local steps.

    In the hooks of a local step (``client_step`` and what it calls) under the engines ``vectorized`` and ``captured``, the
    numbers are tensors without dimensions, despite their annotation: compute with them, but do not convert them into Python
    numbers. Hooks store their state in the dicts ``state`` and ``tasks``.
    """

    index: int
    round: int  # counted from 1
    num_train: int  # n_k, training samples
    num_steps: int  # local steps of this visit
    label_counts: Tensor  # (C,), training and validation samples
    train_label_counts: Tensor  # (C,), training samples only
    weight_names: Sequence[str]  # in the order of net.parameters()
    received_state: State  # received weights and buffers, by name, without gradient
    data: ClientBatches | None  # serves its samples; None in a local step, which sees only its batch
    differentiate: Differentiate
    evaluate: Callable[[State, Callable[[Any], Tensor]], Tensor]
    """What a function of the net gives with other weights and buffers in it, in evaluation mode, without gradient.

    The weights and buffers that are left out are those of ``received_state``.
    """
    apply: Callable[[Sequence[Tensor]], None]  # the local optimizer's step with these gradients, once a local step, at its end
    estimate: GradientEstimator = mean_gradient
    sends: bool = True  # in this visit; else it trains for itself
    expected_batch_size: float | None = None  # of Poisson batches; None: batches have known sizes
    num_estimates: int = 0  # calls of ``estimate`` in this local step, with the present one; without privacy not counted
    step: int | Tensor = 0  # of this visit, counted from 0; in the hooks of a local step
    learning_rate: float | Tensor = 0.0  # of the local optimizer, the mean over this visit's steps, once client_start is done
    resting: Sequence[str] = ()  # weights that the present local step does not change
    relabel: Callable[[Batch, Self], Batch] | None = None  # gives a batch the labels that it trains on; None: its own
    # Lambdas, as a compiled local step makes a client, and the compiler does not support dict[str, Any]().
    # Tensors by name, or by group and name, as in state["variate"]["classifier.weight"].
    broadcast: dict[str, Any] = field(default_factory=lambda: {})  # received in addition to the weights
    carry: dict[str, Any] = field(default_factory=lambda: {})  # result of client_start; constant during the fit
    state: dict[str, Any] = field(default_factory=lambda: {})  # persists until the client's next visit
    # Not in a local step: the moments of its optimizer, where they persist, and the tasks that it has learned, by position.
    moments: dict[int, State] = field(default_factory=lambda: {})
    tasks: dict[int, LearnedTask] = field(default_factory=lambda: {})

    @property
    def received(self) -> tuple[Tensor, ...]:
        """The received weights, in the order of ``net.parameters()``, without gradient."""
        return tuple(self.received_state[name] for name in self.weight_names)

    def having(self, **changes: Any) -> Self:
        """The same client with other facts: ``dataclasses.replace`` in a tenth of the time, as each local step needs one."""
        client = object.__new__(type(self))
        vars(client).update(vars(self), **changes)
        return client

    def batches(self) -> Iterator[Batch]:
        """This visit's batches, from the start, the same at every call."""
        return map(self.labeled, self._samples().batches(self.index, self.round, self.num_steps))

    def epoch(self, purpose: str) -> Iterator[Batch]:
        """One pass over its training samples in an order drawn for the purpose, with short batches padded."""
        return map(self.labeled, self._samples().epoch(self.index, self.round, purpose))

    def samples(self) -> Iterator[Batch]:
        """Its training samples, each once and without randomness."""
        return map(self.labeled, self._samples().client_samples(self.index))

    def labeled(self, batch: Batch) -> Batch:
        """A batch of its samples with the labels that it trains on, which are others if it flips labels."""
        return batch if self.relabel is None else self.relabel(batch, self)

    def _samples(self) -> ClientBatches:
        if self.data is None:
            raise RuntimeError(
                "client.batches, epoch or samples inside a local step, which sees only its batch: call them in client_start"
            )
        return self.data


@dataclass(frozen=True)
class Protection:
    """A defence's part at the clients; by default there is none.

    Args:
        estimate: the way a gradient is computed from a batch's samples.
        one_by_one: the end of a sentence that explains why ``estimate`` works only for one client at a time, uncompiled; None:
            it works for many at once.
        poisson_batches: whether every sample is in a batch by an independent draw.
        bound: bounds a client's upload, from the upload and the received weights; None: it is sent unchanged.
    """

    estimate: GradientEstimator = mean_gradient
    one_by_one: str | None = None
    poisson_batches: bool = False
    bound: Callable[[Upload, State], Upload] | None = None
