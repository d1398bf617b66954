"""One client after another in one working copy of the net."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.engines.cohort_share import Share
from fl_lightning.engines.engine import Engine, set_gradients
from fl_lightning.engines.run_context import RunContext
from fl_lightning.exchange import Batch, Client, Visit
from fl_lightning.functional.aggregation import State


class SequentialEngine(Engine):
    """Runs a cohort client by client: weights, buffers and the optimizer's memory are used again."""

    full_batches = False
    """Whether short batches are filled up with samples that do not count."""

    def __init__(self, method: FederatedAlgorithm, context: RunContext) -> None:
        super().__init__(method, context)
        self.optimizer = method.local_optimizer(list(self.trained.values()))
        # Most optimizers start empty; those that do not (Adagrad) are built anew for every visit.
        self._starts_empty = not self.optimizer.state
        self._rates = [group["lr"] for group in self.optimizer.param_groups]
        self._resting: Sequence[str] = ()

    def fit_share(self, round: int, visits: dict[int, Visit], share: Share, max_steps: int | None = None) -> None:
        for position, visit in visits.items():
            client, loss = self.fit_one(round, visit, max_steps)
            self.leave(client, visit, position, loss, share)

    def fit_one(self, round: int, visit: Visit, max_steps: int | None = None) -> tuple[Client, Tensor]:
        """Fit one client, whose model is then in the working copy; returns it and the mean loss over its steps, (1,)."""
        counts = (table[visit.client] for table in (self.data.label_counts, self.data.train_label_counts))
        client, local = self.receive(round, visit, *counts)
        with self.context.precision():
            self.start(client, local)
            return client, self._fit(client, min(client.num_steps, max_steps or client.num_steps))

    def _fit(self, client: Client, num_steps: int) -> Tensor:
        """The local fit; returns the mean loss over its steps, (1,)."""
        client.begin_fit(self._start_optimizer(client), self._apply)
        batches = self.samples.batches(client.index, client.round, num_steps, self.full_batches)
        with self.drawing(client, "layers"):
            losses = [self._step(client, batch, step) for step, batch in enumerate(batches)]
        if self.needs.client_moments:
            client.keep_moments(self._moments())
        return torch.stack(losses).double().mean(dim=0, keepdim=True)

    def _step(self, client: Client, batch: Batch, step: int) -> Tensor:
        """One local step; returns the loss before it."""
        client.begin_step(step, self._rests(client, step))
        return self.method.client_step(self.net, batch, client)

    def _start_optimizer(self, client: Client) -> float:
        """A fresh optimizer, or with what the client kept of its last, at this visit's rate.

        Returns the rate (that of the first group, where there are several).
        """
        if self._starts_empty:
            self.optimizer.state.clear()
        else:
            self.optimizer = self.method.local_optimizer(list(self.trained.values()))
        if client.moments:
            self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": client.moments})
        factor = self.method.client_learning_rate(client.round, client.index)
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        return self.optimizer.param_groups[0]["lr"]

    def _moments(self) -> dict[int, State]:
        """What the optimizer would go on with; SGD without momentum has None instead."""
        states = self.optimizer.state_dict()["state"].items()
        moments = {i: {name: v.clone() for name, v in state.items() if isinstance(v, Tensor)} for i, state in states}
        return {i: state for i, state in moments.items() if state}

    def _rests(self, client: Client, step: int) -> Sequence[str]:
        """The weights that a local step leaves as they are, for the hooks of that step and for ``_apply`` at its end."""
        self._resting = tuple(self.method.resting(client.index, step))
        return self._resting

    def _apply(self, gradients: Sequence[Tensor]) -> None:
        set_gradients(self.trained, gradients, self._resting)
        self.optimizer.step()
        torch.clear_autocast_cache()
