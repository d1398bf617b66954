"""The server's part of a round; it is undone if it makes the model or the server's state non-finite."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.data.participation import Participation
from fl_lightning.engines.round_hooks import RoundHooks
from fl_lightning.functional.random_streams import seeded_layers
from fl_lightning.privacy import Privacy
from fl_lightning.protocol import CohortFit, RoundReport
from fl_lightning.run.lost_rounds import what_blew_up
from fl_lightning.run.undoable_step import UndoableStep
from fl_lightning.state.client_states import ClientStates


class ServerStep:
    """Applies the result of a cohort's fit at the server.

    Args:
        hooks: hooks of the method.
        optimizer: the server's, as Lightning counts its steps.
        privacy: adds noise to the mean, if given.
        device: device of the net.
    """

    def __init__(self, hooks: RoundHooks, optimizer: LightningOptimizer, privacy: Privacy | None, device: torch.device) -> None:
        self._hooks, self._optimizer, self._privacy, self._device = hooks, optimizer, privacy, device
        method = hooks.method
        frozen = [weight for name, weight in method.net.named_parameters() if name in method.constant_names]
        self._undoable = UndoableStep(method, optimizer.optimizer, frozen)

    def take(self, fit: CohortFit, participation: Participation, states: ClientStates) -> RoundReport:
        """Aggregate, step and commit the clients' states; the round's report shows an undone step.

        Args:
            fit: fit of the cohort.
            participation: the clients from which the cohort was drawn.
            states: the clients' states.
        """
        round, method = fit.report.round, self._hooks.method
        self._undoable.remember()
        with seeded_layers(method.seed, round, -1, "server", self._device):
            update = self._hooks.aggregate(fit.reduced) if fit.report.num_updates > 0 else None
            if self._privacy is not None:
                update = self._privacy.release(update, method, participation, fit.report.num_updates)
            method.server_step(update)
            self._hooks.end_round(fit.probes)
            if self._undoable.is_sound():
                states.commit(round, fit.kept, fit.cleared)
                return fit.report
            self._undo()
            method.server_step(None)
            self._hooks.end_round([])
            if not self._undoable.is_sound():  # the hooks fail without an update too
                self._undo()
        states.commit(round, [])  # no client keeps anything of it
        report = replace(fit.report, undone=True)
        warnings.warn(f"round {round}: {what_blew_up(report)}, and was undone", stacklevel=1)
        return report

    def step_optimizer(self) -> None:
        """Step the server's optimizer; does nothing after an undone step, which has been counted."""
        if not self._undoable.is_undone:
            self._optimizer.step()

    def _undo(self) -> None:
        self._undoable.undo()
        self._hooks.after_undo()


class OptimizerAlone:
    """A server's optimizer without a trainer, built with its first step: the net can be moved to a device before that.

    Args:
        method: the optimizer steps its weights.
        build: the optimizer.
    """

    def __init__(self, method: FederatedAlgorithm, build: Callable[..., torch.optim.Optimizer]) -> None:
        self._method, self._build = method, build

    @cached_property
    def _optimizer(self) -> torch.optim.Optimizer:
        return self._build([*self._method.trained_weights(self._method.net).values()])

    def step(self) -> None:
        """Move the weights along ``.grad``."""
        self._optimizer.step()
