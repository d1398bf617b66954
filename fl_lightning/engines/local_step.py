"""A local step as a function of tensors, for ``torch.vmap`` to stack and ``torch.compile`` to capture."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.checks import ArgumentError, did_you_mean
from fl_lightning.engines.gradients import by_transform
from fl_lightning.functional.aggregation import State
from fl_lightning.functional.counted_dropout import CountedDropout
from fl_lightning.functional.random_streams import random_bits, stream_seed
from fl_lightning.functional.stateless import call_with, tensor_slots
from fl_lightning.functional.transfers import filled
from fl_lightning.protocol import Batch, Client
from fl_lightning.protocol.client import GradientEstimator

# Optimizers whose step of a weight is proportional to their rate. Their state does not depend on the rate.
PROPORTIONAL = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
)
# Optimizers that treat every entry of a weight separately: stacked weights step as with one optimizer per client.
ELEMENTWISE = (*PROPORTIONAL, torch.optim.Rprop, torch.optim.ASGD)


class StepResult(NamedTuple):
    """The results of a local step; the local optimizer has not stepped yet."""

    gradients: tuple[Tensor, ...]  # gradients for the local optimizer
    loss: Tensor
    untrained: State  # buffers, and frozen weights that tasks draw
    state: dict[str, Any]  # the client's


def step_dropout(key_of_run: int, client: Client) -> CountedDropout:
    """The masks of a client's local step, from :func:`run_key`. The client's index, the round and the step may be tensors."""
    device = client.label_counts.device
    key = torch.full((), key_of_run, device=device)
    for part in (client.index, client.round, client.step):
        key = random_bits(key, filled(part, device))
    return CountedDropout(key)


def run_key(seed: int) -> int:
    """The key of the masks of all local steps of a run."""
    return stream_seed(seed, -1, -1, "dropout")


class LocalStep:
    """A method's ``client_step`` without side effects.

    Args:
        net: the net for the hooks, with other tensors in it during the call.
        frozen: a second net, for ``client.evaluate``.
        differentiate: the way a function is differentiated, such as :func:`by_transform`.
        dropout_key: :func:`run_key` of the run; None: the net has no dropout that can be counted.
    """

    def __init__(
        self,
        method: FederatedAlgorithm,
        net: nn.Module,
        frozen: "Scope",
        estimate: GradientEstimator,
        differentiate: Callable[..., tuple[State, Any]] = by_transform,
        dropout_key: int | None = None,
    ) -> None:
        self.method, self.estimate, self._differentiate, self._dropout_key = method, estimate, differentiate, dropout_key
        self.scope, self._frozen = Scope(net), frozen
        self._weight_names = [name for name, _ in net.named_parameters()]

    def __call__(
        self,
        trained: State,
        untrained: State,
        batch: Batch,
        round: int | Tensor,
        step: int | Tensor,
        facts: dict[str, Any],
        resting: Sequence[str] = (),
    ) -> StepResult:
        """One client's step; no argument is changed.

        Args:
            trained: the weights that require a gradient, by name.
            untrained: buffers, and frozen weights that tasks draw, by name; the net holds those that are constant.
            step: of the visit, counted from 0.
            facts: the client's facts for the hooks, tensors on the device by the names of a ``Client``.
            resting: weights that this step does not change.

        Raises:
            ArgumentError: if the method's hooks do not call ``client.apply`` exactly once.
        """
        newest = {name: tensor.clone() for name, tensor in untrained.items()}
        applied: list[Sequence[Tensor]] = []

        # The functions in here have no type hints: the compiler would have to evaluate them, and cannot.
        def differentiate(objective, at=None, buffers=None):
            nonlocal newest
            weights = trained if at is None else dict(zip(trained, at, strict=True))
            held = newest if buffers is None else {**newest, **{name: buffer.clone() for name, buffer in buffers.items()}}

            def evaluate(trained, untrained):
                (value, loss), after = self.scope.call({**trained, **untrained}, untrained, objective)
                return value, (loss.detach(), after)

            gradients, (_, (loss, after)) = self._differentiate(evaluate, weights, held)
            if buffers is None:
                newest = after
            else:
                buffers.update({name: after[name] for name in buffers})
            return tuple(gradients.values()), loss

        client = Client(
            **{**facts, "round": round, "state": _copied(facts["state"])},
            weight_names=self._weight_names,
            step=step,
            data=None,
            differentiate=differentiate,
            evaluate=lambda tensors, function: self._frozen.evaluate({**facts["received_state"], **tensors}, function),
            apply=applied.append,
            estimate=self.estimate,
            resting=resting,
        )

        if self.method.hostile is not None:
            batch = self.method.hostile.batch(batch, client)

        def take_step():
            with nullcontext() if self._dropout_key is None else step_dropout(self._dropout_key, client):
                return self.method.client_step(self.scope.net, batch, client)

        loss, _ = self.scope.call({**trained, **newest}, (), take_step)
        check_one_update(self.method, len(applied))
        return StepResult(tuple(applied[0]), loss.detach(), newest, client.state)


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """New dicts with the same tensors: a hook's additions to its state do not change the caller's."""
    return {name: _copied(part) if isinstance(part, dict) else part for name, part in state.items()}


def check_one_update(method: FederatedAlgorithm, times: int) -> None:
    """Check how often the local step of a method called ``client.apply``.

    Raises:
        ArgumentError: if it is not once.
    """
    if times != 1:
        raise ArgumentError(f"{type(method).__name__}.client_step", f"calls client.apply {times} times, must call it once")


class Scope(nn.Module):
    """Calls a function while a net holds other tensors."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self._slots = tensor_slots(self)

    def call(self, tensors: State, watched: Sequence[str], function: Callable[[], Any]) -> tuple[Any, State]:
        """The function's result, and the net's tensors under the ``watched`` names after it."""
        return call_with(self, self._slots, {f"net.{name}": tensor for name, tensor in tensors.items()}, (function, watched))

    @torch.no_grad()
    def evaluate(self, tensors: State, function: Callable[[nn.Module], Tensor]) -> Tensor:
        """``client.evaluate`` on this net, which stays in evaluation mode.

        Raises:
            ArgumentError: if the net has no tensor of a name.
        """
        if unknown := sorted(name for name in tensors if f"net.{name}" not in self._slots):
            known = [slot.removeprefix("net.") for slot in self._slots]
            cure = did_you_mean(unknown[0], known, otherwise="give names of the net's weights and buffers")
            raise ArgumentError("client.evaluate", f"is given {unknown[0]!r}, which the net has not: {cure}")
        return self.call(tensors, (), lambda: function(self.net))[0].detach()

    def forward(self, function: Callable[[], Any], watched: Sequence[str]) -> tuple[Any, State]:
        result = function()
        held = (*self.net.named_parameters(), *self.net.named_buffers()) if watched else ()
        return result, {name: tensor for name, tensor in held if name in watched}
