"""A client during its visit."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from fl_lightning.data import Batch

Objective = Callable[[], tuple[Tensor, Tensor]]  # what is minimised, and the loss to report


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
    batches: Callable[[], Iterator[Batch]]  # this visit's batches, from the start, the same at every call; not in a local step
    differentiate: Callable[[Objective], tuple[Sequence[Tensor], Tensor]]  # gradients by the trainable weights, and the loss
    apply: Callable[[Sequence[Tensor]], None]  # the local optimizer's step with these gradients, once a local step, at its end
    learning_rate: float | Tensor = 0.0  # of the local optimizer in this visit; set once client_start is done
    broadcast: dict[str, Tensor] = field(default_factory=dict)  # what came down beside the weights
    carry: dict[str, Tensor] = field(default_factory=dict)  # what client_start made; constant during the fit
    state: dict[str, Tensor] = field(default_factory=dict)  # persists until the client's next visit
