"""The server's part of a round; it is undone if it makes the model or the server's state non-finite."""

import copy
import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn

from fl_lightning.checks import ArgumentError
from fl_lightning.data.participation import Participation
from fl_lightning.engines.round_hooks import RoundHooks
from fl_lightning.functional.aggregation import State
from fl_lightning.functional.finite import all_finite
from fl_lightning.functional.many_tensors import copy_all
from fl_lightning.functional.random_streams import seeded_layers
from fl_lightning.privacy import Privacy
from fl_lightning.protocol import CohortFit, RoundReport, Update
from fl_lightning.run.lost_rounds import what_blew_up
from fl_lightning.state.client_states import ClientStates

Moments = list[dict[str, Any] | None]  # of an optimizer, by weight; None: the weight has not been stepped


class ServerStep:
    """Applies the result of a cohort's fit at the server; Lightning counts the steps of its optimizer."""

    def __init__(self, hooks: RoundHooks, optimizer: LightningOptimizer, privacy: Privacy | None, device: torch.device) -> None:
        self._hooks, self._optimizer, self._privacy, self._device = hooks, optimizer, privacy, device
        method = hooks.method
        frozen = [weight for name, weight in method.net.named_parameters() if name in method.constant_names]
        self._undoable = UndoableStep(method, optimizer.optimizer, frozen)
        self._steps = 0  # of the optimizer, in the present call of ``server_step``

    def take(self, fit: CohortFit, participation: Participation, states: ClientStates) -> RoundReport:
        """Aggregate, step and commit the clients' states; the round's report shows an undone step."""
        round, method = fit.report.round, self._hooks.method
        self._undoable.remember()
        with seeded_layers(method.seed, round, -1, "server", self._device):
            update = self._hooks.aggregate(fit.reduced) if fit.report.num_updates > 0 else None
            if self._privacy is not None:
                update = self._privacy.release(update, method, participation, fit.report.num_updates)
            self._step(update)
            self._hooks.end_round(fit.probes)
            if self._undoable.is_sound():
                states.commit(round, fit.kept, fit.cleared)
                return fit.report
            self._undo()
            self._step(None)
            self._hooks.end_round([])
            if not self._undoable.is_sound():  # the hooks fail without an update too
                self._undo()
        states.commit(round, [])  # no client keeps anything of it
        report = replace(fit.report, undone=True)
        warnings.warn(f"round {round}: {what_blew_up(report)}, and was undone", stacklevel=1)
        return report

    def step_optimizer(self) -> None:
        """Step the server's optimizer; does nothing after an undone step, which was counted."""
        self._steps += 1
        if not self._undoable.is_undone:
            self._optimizer.step()

    def _step(self, update: Update | None) -> None:
        """Call the method's ``server_step``, which steps the optimizer once, so that Lightning counts the round.

        Raises:
            ArgumentError: if it does not; in a round without an update it may leave that out.
        """
        self._steps = 0
        method = self._hooks.method
        method.server_step(update)
        if update is None and self._steps == 0:
            self._optimizer.zero_grad()
            self.step_optimizer()
        if self._steps != 1:
            raise ArgumentError(
                f"{type(method).__name__}.server_step",
                f"calls step_server_optimizer {self._steps} times, must call it once, as super().server_step does: each step "
                "counts as a round",
            )

    def _undo(self) -> None:
        self._undoable.undo()
        self._hooks.after_undo()


class UndoableStep:
    """Remembers the server's state that a round can change, in memory that is allocated once.

    This is all weights of the module but the frozen ones, all buffers, those of the net and the server's state, and the
    optimizer's moments.
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, frozen: Iterable[Tensor]) -> None:
        self._module, self._optimizer, self._frozen = module, optimizer, frozenset(frozen)
        self._state: State = {}
        self._moments: Moments = []
        self.is_undone = False  # the remembered state is restored
        # Values that are non-finite by design, such as an accuracy that was never measured, do not come from the step.
        self._finite = all_finite(self._tensors().values())

    def remember(self) -> None:
        """Copy the present state; the previous round's is overwritten."""
        self.is_undone = False
        self._state = _copied(self._tensors(), self._state)
        before = self._moments or [None] * len(self._weights())
        states = (self._optimizer.state.get(weight) for weight in self._weights())
        self._moments = [state and _copied(state, old or {}) for state, old in zip(states, before, strict=True)]

    def is_sound(self) -> bool:
        """Whether all finite values are still finite; the one transfer from the device."""
        finite = all_finite(self._tensors().values())
        kept = [value for state in self._optimizer.state.values() for value in state.values()]
        # Counters of steps, without dimensions, can be on another device than the weights.
        moments = [value for value in kept if isinstance(value, Tensor) and value.ndim > 0]
        sound = bool((finite | ~self._finite).all() & all_finite(moments).all())
        if sound:
            self._finite = finite
        return sound

    def undo(self) -> None:
        """Restore the state that :meth:`remember` copied."""
        self.is_undone = True
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                tensor.copy_(self._state[name])
        for weight, moments in zip(self._weights(), self._moments, strict=True):
            if moments is None:
                self._optimizer.state.pop(weight, None)
            else:
                self._optimizer.state[weight] = _copied(moments, {})

    def _weights(self) -> list[Tensor]:
        return [weight for group in self._optimizer.param_groups for weight in group["params"]]

    def _tensors(self) -> State:
        named = (*self._module.named_parameters(), *self._module.named_buffers())
        return {name: tensor.detach() for name, tensor in named if tensor not in self._frozen}


def _copied(state: dict[str, Any], memory: dict[str, Any]) -> dict[str, Any]:
    """A copy of a state, its tensors in ``memory`` if they fit there."""
    copies, targets, values = {}, [], []
    for name, value in state.items():
        target = memory.get(name)
        if not isinstance(value, Tensor):
            copies[name] = copy.deepcopy(value)
        elif isinstance(target, Tensor) and target.shape == value.shape and target.dtype == value.dtype:
            copies[name] = target
            targets.append(target)
            values.append(value.detach())
        else:
            copies[name] = value.detach().clone()
    copy_all(targets, values)
    return copies
