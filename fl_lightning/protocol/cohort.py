"""The results of a cohort's local fits."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from fl_lightning.protocol.batch import NetInputs
from fl_lightning.protocol.upload import Reduction

Result = TypeVar("Result")

_FAR = 1e6  # times what is usual
_LEAST = 1e3  # a norm that is never far: clients that have learned everything send next to nothing


class Inputs(Protocol):
    """Inputs of the net, (samples, ...): a tensor, or made part by part, as by the data module's ``test_inputs``."""

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def split(self, size: int, /) -> Iterable[NetInputs]:
        """All inputs in order, ``size`` at a time, the rest in the last part."""
        ...


Evaluate = Callable[[Callable[[Any], Tensor]], Tensor]  # from a function of the net to its result with one model in the net


@dataclass(frozen=True)
class RoundReport:
    """A round in numbers, the same on every process."""

    round: int
    clients: list[int]
    losses: list[float]  # mean loss over each client's local steps
    num_updates: int  # finite updates of a weight above 0 that reached the server; 0 in a lost round
    nonfinite: list[int]  # clients with a non-finite update or state: left out of the mean, their state as before
    bytes_down: int  # sent to all clients of the round together
    bytes_up: int
    norms: list[float]  # of all that each client sent, weights and buffers less the global ones; 0 if nothing was sent
    lost: bool = False  # whether nothing of the round counts: too few of the senders have a finite update of a weight above 0
    undone: bool = False  # whether the server's step was undone, and all clients' states with it
    missing: list[int] | None = None  # drawn, but not in ``clients``: late, or with a lost upload; None without devices
    seconds: float | None = None  # simulated time of the round; None: visits take no time

    @property
    def counted(self) -> list[int]:
        """Clients with visits that count: their state is new."""
        return [] if self.lost or self.undone else [client for client in self.clients if client not in self.nonfinite]

    @property
    def largest_norm(self) -> tuple[float, int] | None:
        """The largest norm of a finite update, and its client; None if no client sent anything."""
        return max(self._sent(), default=None)

    def far_above(self, before: float | None) -> float | None:
        """The usual norm, if the largest one of a round that counts is over a million times as large; else None.

        The usual norm is the median of the others of the round, or the largest norm before, whichever is less.

        Args:
            before: the largest norm of the previous round, if there was one.
        """
        *others, largest = sorted(norm for norm, _ in self._sent()) or [0.0]
        usual = min(filter(None, (median(others or [0.0]), before)), default=None)
        if usual is None or self.lost or self.undone or largest <= max(_FAR * usual, _LEAST):
            return None
        return usual

    def _sent(self) -> list[tuple[float, int]]:
        norms = zip(self.norms, self.clients, strict=True)
        return [(norm, client) for norm, client in norms if client not in self.nonfinite and norm > 0]


@dataclass(frozen=True, repr=False)
class CohortModels:
    """The cohort's models after their local fits, for evaluation only: the models cannot be kept.

    Args:
        clients: indices of the clients, in the order of the results, without those with a non-finite update or state.
        evaluate_one: by position in ``clients``, of each model; missing for models in another process.
        evaluate_received: of the global model that the round started from.
        sum_over_ranks: adds a tensor up over the processes.
        batch_size: samples of an evaluation step.
        evaluate_one_before: as ``evaluate_one``, of personal models before their fits; None: all started from the global model.
        accuracies_at_sites: accuracies on the clients' validation parts, which are at their sites: (K,) of the global model
            that the round started from, and (K, K), row i the model of client i; None: the server has these samples.
    """

    clients: list[int]
    evaluate_one: dict[int, Evaluate]
    evaluate_received: Evaluate
    sum_over_ranks: Callable[[Tensor], Tensor]
    batch_size: int
    evaluate_one_before: dict[int, Evaluate] | None = None
    accuracies_at_sites: Callable[[], tuple[Tensor, Tensor]] | None = None

    def evaluate(self, function: Callable[[Any], Tensor]) -> Tensor:
        """The results (clients, ...) of a function of the net for every client's model; every process must call it.

        Args:
            function: gets the net with the model in it, in evaluation mode and without gradient, reads it and returns a tensor
                of the same shape for each model. It must not change the net.
        """
        return self._evaluate_each(self.evaluate_one, function)

    def predict(self, inputs: Inputs) -> Tensor:
        """Logits (clients, samples, classes) of every client's model in evaluation mode; every process must call it.

        Args:
            inputs: (samples, ...) as the net takes them, the same on every process: a tensor, or the result of the data
                module's ``test_inputs``.
        """
        return self.evaluate(self._logits(inputs))

    def predict_received(self, inputs: Inputs) -> Tensor:
        """Logits (samples, classes) of the global model that the round started from."""
        return self.evaluate_received(self._logits(inputs))

    def predict_before(self, inputs: Inputs) -> Tensor:
        """As :meth:`predict`, before the fits: of personal models if clients keep some, else of the global one, K times."""
        if self.evaluate_one_before is None:
            logits = self.predict_received(inputs)
            return logits.expand(len(self.clients), *logits.shape)
        return self._evaluate_each(self.evaluate_one_before, self._logits(inputs))

    def predict_personal(self, inputs: Sequence[Inputs], before: bool = False) -> Tensor:
        """Logits (samples, classes) of every client's model for its client's inputs, joined; every process must call it.

        Args:
            inputs: of each client.
            before: use the models before their fits.
        """
        models = self.evaluate_one
        if before:
            models = self.evaluate_one_before or dict.fromkeys(self.evaluate_one, self.evaluate_received)
        some = self.predict_received(next((part for part in inputs if len(part) > 0), inputs[0]))
        parts = [some.new_zeros(len(part), *some.shape[1:]) for part in inputs]
        for position, evaluate in models.items():
            if len(parts[position]) > 0:
                parts[position] = evaluate(self._logits(inputs[position]))
        return self.sum_over_ranks(torch.cat(parts))

    def _logits(self, inputs: Inputs) -> Callable[[nn.Module], Tensor]:
        return lambda net: predict_in_batches(net, self.batch_size, inputs)

    def _evaluate_each(self, models: dict[int, Evaluate], function: Callable[[Any], Tensor]) -> Tensor:
        received = self.evaluate_received(function)
        results = received.new_zeros(len(self.clients), *received.shape)
        for position, evaluate in models.items():
            results[position] = evaluate(function)
        return self.sum_over_ranks(results)


@dataclass(frozen=True)
class CohortFit:
    """Result of an engine's ``run``."""

    reduced: Reduction
    report: RoundReport
    models: CohortModels | None  # None unless they were asked for
    kept: list[int]  # clients with new states that count once the server's step is final
    cleared: list[int]  # clients that keep nothing from then on
    probes: list[dict[str, Tensor]]  # in the order of the cohort, without clients with a non-finite update or state


@torch.no_grad()
def evaluate_net(net: nn.Module, function: Callable[[Any], Result]) -> Result:
    """The result of a function of a net in evaluation mode; the net's mode is restored."""
    training = net.training
    net.eval()
    try:
        return function(net)
    finally:
        net.train(training)


def predict_in_batches(net: nn.Module, batch_size: int, inputs: Inputs) -> Tensor:
    """Logits (samples, classes), in evaluation mode; the net's mode is restored."""
    return evaluate_net(net, lambda net: torch.cat([net(part) for part in inputs.split(batch_size)]))
