"""One client after another in one working copy of the net."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.checks import ArgumentError
from fl_lightning.engines.cohort_share import Share
from fl_lightning.engines.engine import Engine
from fl_lightning.engines.hook_mistakes import check_apart, check_minimised
from fl_lightning.engines.linear_factors import LinearFactors, steps_by_factors
from fl_lightning.engines.local_step import ELEMENTWISE, check_one_update, run_key, step_dropout
from fl_lightning.engines.net_behaviour import counts_dropout
from fl_lightning.engines.run_context import RunContext
from fl_lightning.functional.aggregation import State
from fl_lightning.functional.many_tensors import set_gradients
from fl_lightning.functional.schedules import set_rates
from fl_lightning.protocol import Batch, Client, Gradients, Objective, Reply, Request, Visit, mean_gradient


class SequentialEngine(Engine):
    """Runs a cohort client by client: weights, buffers and the optimizer's memory are used again."""

    full_batches = False
    """Whether short batches are filled up with samples that do not count."""
    is_compiled = False
    """Whether local steps run as a program of their own, not as they are written."""

    def __init__(self, method: FederatedAlgorithm, context: RunContext) -> None:
        super().__init__(method, context)
        self.optimizer = method.optimizer(list(self.trained.values()))
        # torch's optimizers start empty, but for Adagrad. It is built again for every visit, as are others, which can count
        # steps in their groups.
        self._starts_empty = type(self.optimizer) in ELEMENTWISE and not self.optimizer.state
        self._rates = [group["lr"] for group in self.optimizer.param_groups]
        self._rates_of_visit = self._rates
        self._resting: Sequence[str] = ()
        by_factors = not self.is_compiled and steps_by_factors(method, context, self.optimizer)
        self._factors = LinearFactors(self.net, self.trained if by_factors else ())
        with context.precision():
            self.counts_dropout = counts_dropout(self.net, self.data.first_inputs(2))

    def fit_share(self, round: int, visits: dict[int, Visit], share: Share, max_steps: int | None = None) -> None:
        for position, visit in visits.items():
            self.book(position, self.visit(self.request(round, visit, max_steps)), share)

    def visit(self, request: Request) -> Reply:
        """One client's visit, from only its request; the reply is in the memory of the working copy."""
        client, loss = self.fit(request)
        with self.context.precision():
            return self.reply(request, client, loss)

    def fit(self, request: Request) -> tuple[Client, Tensor]:
        """Fit one client and leave its model in the working copy; returns it and the mean loss over its steps, (1,)."""
        with self.context.precision():
            client = self.start(*self.receive(request))
            return self._fit(client, min(client.num_steps, request.max_steps or client.num_steps))

    def _fit(self, client: Client, num_steps: int) -> tuple[Client, Tensor]:
        """The local fit; returns the client as it is then, and the mean loss over its steps, (1,)."""
        client = client.having(learning_rate=self._start_optimizer(client), apply=self._apply)
        batches = self.samples.batches(client.index, client.round, num_steps, self.full_batches)
        with self.drawing(client, "layers"):
            losses = [self._step(client, batch, step) for step, batch in enumerate(batches)]
            if client.state:
                check_apart(self.method, client.state, self.working_memory)
        if self.needs.client_moments:
            client = client.having(moments=self._moments())
        return client, torch.stack(losses).double().mean(dim=0, keepdim=True)

    def _step(self, client: Client, batch: Batch, step: int) -> Tensor:
        """One local step; returns the loss before it."""
        self._resting = self.hooks.resting(client.index, step)  # for ``_apply`` too
        client = client.having(step=step, resting=self._resting)
        protected = self.context.protection.estimate is not mean_gradient
        if protected:
            client = client.having(estimate=self._estimate)
        self.hooks.set_step_rate(self.optimizer, self._rates_of_visit, step)
        batch = client.labeled(batch)
        dropout = step_dropout(run_key(self.seed), client) if self.counts_dropout else nullcontext()
        self._applied, self._num_estimates = 0, 0
        with dropout, self._factors.collected():
            loss = self.method.client_step(self.net, batch, client)
        check_one_update(self.method, self._applied)
        if protected and self._num_estimates == 0:
            raise ArgumentError(
                f"{type(self.method).__name__}.client_step",
                "takes gradients without client.estimate, so that model.privacy neither clips them nor adds noise: take them "
                "from objective_gradients, or use UserLevelDP",
            )
        return loss

    def _estimate(self, net: nn.Module, batch: Batch, client: Client, *arguments: Any, **settings: Any) -> Gradients:
        """``client.estimate`` of a defence, which counts a local step's calls."""
        self._num_estimates += 1
        client = client.having(num_estimates=self._num_estimates)
        return self.context.protection.estimate(net, batch, client, *arguments, **settings)

    def differentiate(
        self, objective: Objective, at: Sequence[Tensor] | None = None, buffers: State | None = None
    ) -> tuple[Sequence[Tensor | None], Tensor]:
        """As the engine's; in a local step, gradients of weights that are only used by layers with factors are None."""
        if not self._factors.is_open:
            return super().differentiate(objective, at, buffers)
        value, loss = objective()
        check_minimised(self.method, value, self.outside)
        return torch.autograd.grad(value, list(self.trained.values()), allow_unused=True), loss.detach()

    def _start_optimizer(self, client: Client) -> float:
        """An optimizer at this visit's rate, fresh or with the client's stored state.

        Returns the rate, the mean over the visit's steps (that of the first group, if there are several).
        """
        if self._starts_empty:
            self.optimizer.state.clear()
        else:
            self.optimizer = self.method.optimizer(list(self.trained.values()))
        if client.moments:
            self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": client.moments})
        factor = self.hooks.rate_factor(client.round, client.index)
        set_rates(self.optimizer, self._rates, factor)
        self._rates_of_visit = [group["lr"] for group in self.optimizer.param_groups]
        return self.hooks.mean_rate(self._rates_of_visit[0], client.num_steps)

    def _moments(self) -> dict[int, State]:
        """The optimizer's state to keep; SGD without momentum has None instead."""
        states = self.optimizer.state_dict()["state"].items()
        moments = {i: {name: v.clone() for name, v in state.items() if isinstance(v, Tensor)} for i, state in states}
        return {i: state for i, state in moments.items() if state}

    def _apply(self, gradients: Sequence[Tensor]) -> None:
        self._applied += 1
        set_gradients(self.trained, gradients, self._resting)
        self.optimizer.step()
        self._factors.add(self.optimizer, self._resting)
        for weight in self.trained.values():
            weight.grad = None  # the next gradients take this memory while it is in the processor's cache
        torch.clear_autocast_cache()
