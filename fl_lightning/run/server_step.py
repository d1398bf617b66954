"""The server's part of a round; where it makes the model or the server's state non-finite, all is as before."""

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
    """Has the server take over what a cohort's fit came to.

    Args:
        hooks: of the method.
        optimizer: the server's, as Lightning counts its steps.
        privacy: adds noise to the mean, if there is one.
        device: where the net is.
    """

    def __init__(self, hooks: RoundHooks, optimizer: LightningOptimizer, privacy: Privacy | None, device: torch.device) -> None:
        self._hooks, self._optimizer, self._privacy, self._device = hooks, optimizer, privacy, device
        method = hooks.method
        frozen = [weight for name, weight in method.net.named_parameters() if name in method.constant_names]
        self._undoable = UndoableStep(method, optimizer.optimizer, frozen)

    def take(self, fit: CohortFit, participation: Participation, states: ClientStates) -> RoundReport:
        """Aggregate, step and commit what clients keep; where that is undone, the round's report says so.

        Args:
            fit: of the cohort.
            participation: of whom it was drawn.
            states: what clients keep.
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
            if not self._undoable.is_sound():  # what the hooks do without an update is no better
                self._undo()
        states.commit(round, [])  # nobody keeps anything of it
        report = replace(fit.report, undone=True)
        warnings.warn(f"round {round}: {what_blew_up(report)}, and was undone", stacklevel=1)
        return report

    def step_optimizer(self) -> None:
        """Step the server's optimizer; after an undone step, which has been counted, nothing."""
        if not self._undoable.is_undone:
            self._optimizer.step()

    def _undo(self) -> None:
        self._undoable.undo()
        self._hooks.after_undo()


class OptimizerAlone:
    """A server's optimizer without a trainer, built with its first step: the net may be moved to a device before that.

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
