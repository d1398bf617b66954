"""A client during its visit."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from fl_lightning.data import Batch, FederatedDataModule
from fl_lightning.functional.aggregation import State

Objective = Callable[[], tuple[Tensor, Tensor]]  # what is minimised, and the loss to report


class Differentiate(Protocol):
    """Gradients of an objective by the trainable weights, in order, and the loss to report."""

    def __call__(self, objective: Objective, at: Sequence[Tensor] | None = None) -> tuple[Sequence[Tensor], Tensor]:
        """``at``: trainable weights that the net holds meanwhile, in order; None: its own."""


class Visit(NamedTuple):
    """One client's part in a round.

    A client that does not receive goes on from the weights that it kept (``FederatedModule.keeps_weights``), at its first visit
    from the global ones; one that does not send trains for itself.
    """

    client: int
    receives: bool = True
    sends: bool = True


@dataclass
class Client:
    """What a method's hooks know of the client they work for.

    In the hooks of a local step (``client_step`` and what it calls) under the engines ``vectorized`` and ``captured``, the
    numbers are tensors without dimensions: they can be calculated with, but not turned into Python numbers.
    """

    index: int | Tensor
    round: int  # counted from 1
    num_train: int | Tensor  # n_k, training samples
    num_steps: int | Tensor  # local steps of this visit
    label_counts: Tensor  # (C,), training and validation samples
    train_label_counts: Tensor  # (C,), training samples alone
    received: tuple[Tensor, ...]  # the weights it got, in the order of net.parameters(), without gradient
    received_state: State  # the same by name, and the buffers
    data: FederatedDataModule | None  # serves its samples; None in a local step, which sees its own batch alone
    differentiate: Differentiate
    evaluate: Callable[[State, Callable[[nn.Module], Tensor]], Tensor]
    """What a function of the net gives with other weights and buffers in it, in evaluation mode, without gradient."""
    apply: Callable[[Sequence[Tensor]], None]  # the local optimizer's step with these gradients, once a local step, at its end
    step: int | Tensor = 0  # of this visit, counted from 0; in the hooks of a local step
    learning_rate: float | Tensor = 0.0  # of the local optimizer in this visit; set once client_start is done
    broadcast: dict[str, Tensor] = field(default_factory=dict)  # what came down beside the weights
    carry: dict[str, Tensor] = field(default_factory=dict)  # what client_start made; constant during the fit
    state: dict[str, Tensor] = field(default_factory=dict)  # persists until the client's next visit

    def batches(self) -> Iterator[Batch]:
        """This visit's batches, from the start, the same at every call."""
        return self._server_of_samples().batches(self.index, self.round, self.num_steps)

    def epoch(self, purpose: str) -> Iterator[Batch]:
        """One pass over its training samples in an order that the purpose names, short batches filled up."""
        return self._server_of_samples().epoch(self.index, self.round, purpose)

    def samples(self) -> Iterator[Batch]:
        """Its training samples, each once and nothing about them random."""
        return self._server_of_samples().client_samples(self.index)

    def _server_of_samples(self) -> FederatedDataModule:
        if self.data is None:
            raise RuntimeError("client.batches, epoch or samples inside a local step: a local step sees its own batch alone")
        return self.data
