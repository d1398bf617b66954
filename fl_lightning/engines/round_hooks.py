"""RoundHooks: a method's hooks as a round calls them, each combined with that of the method's learner of tasks."""

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.checks import ArgumentError, did_you_mean, kind_of
from fl_lightning.engines.separate_uploads import CombinedUploads
from fl_lightning.functional.aggregation import State
from fl_lightning.functional.schedules import set_rates
from fl_lightning.protocol import Client, ClientState, Gathered, Learner, Reduction, Update, Upload, Visit, Weighted
from fl_lightning.protocol.hooks import overridden

Hook = Callable[..., Any]


class RoundHooks:
    """The hooks that engines and servers call, in the order of a round, and what engines can skip where these are FedAvg's."""

    def __init__(self, method: FederatedAlgorithm) -> None:
        self.method, self.tasks = method, method.tasks
        self._of_net: dict[str, State] = {
            "weights": dict(method.net.named_parameters()),
            "buffers": dict(method.net.named_buffers()),
        }
        ours, of_tasks = FederatedAlgorithm, Learner

        def are_own(hooks: Sequence[Hook], hooks_of_tasks: Sequence[Hook] = ()) -> bool:
            return bool(overridden(method, *hooks) or overridden(method.tasks, *hooks_of_tasks))

        self.prepares = self.tasks.prepares or are_own([ours.client_start])
        """Whether :meth:`begin_visit` does anything."""
        self.reads_models = method.needs.each_upload or are_own(
            [ours.client_result, ours.kept_state, ours.probe],
            [of_tasks.end_visit, of_tasks.upload, of_tasks.probe, of_tasks.kept_state],
        )
        """Whether a visit ends with an evaluation or a copy of the client's model, which FedAvg does not have."""
        self.has_phases = are_own([ours.resting])
        """Whether a local step can leave weights unchanged."""
        decays = method.learning_rate_decay != 1 or method.client_lr_scheduler is not None
        self.changes_rates = decays or are_own([ours.client_learning_rate], [of_tasks.rate_factor])
        """Whether the factor on the local optimizer's rate can differ between visits."""
        self.first_visit_differs = are_own(
            [ours.broadcast, ours.client_start, ours.client_step, ours.client_result, ours.kept_state],
            [of_tasks.broadcast, of_tasks.begin_visit, of_tasks.end_visit, of_tasks.kept_state],
        )
        """Whether a client's facts or state can look different at its first visit."""

    def rate_factor(self, round: int, client: int) -> float:
        """Factor on the rate of a client's optimizer."""
        factor = self.method.client_learning_rate(round, client)
        if not isinstance(factor, Real):
            raise self._refusal(
                "client_learning_rate", f"returns {kind_of(factor)}, must return a number: 1.0 is the full rate"
            )
        return self.tasks.rate_factor(client) * factor

    def num_local_steps(self, client: int) -> int:
        """Local steps of a visit."""
        steps = self.method.num_local_steps(client)
        if not isinstance(steps, Integral) or steps < 1:
            raise self._refusal("num_local_steps", f"is {steps} for client {client}, must be a whole number from 1 on")
        return int(steps)

    def resting(self, client: int, step: int) -> tuple[str, ...]:
        """Names of the weights that a local step, counted from 0, does not change."""
        names = tuple(self.method.resting(client, step))
        if names and (unknown := sorted({*names} - self.method.trained_names)):
            cure = did_you_mean(unknown[0], self.method.trained_names, otherwise="see trained_weights(net)")
            raise self._refusal("resting", f"names {unknown[0]!r}, which is not a trained weight of the net: {cure}")
        return names

    def mean_rate(self, rate: float, num_steps: int) -> float:
        """The mean over a visit's local steps of a rate that follows the schedule within visits, if there is one."""
        factors = self.method.step_factors
        return rate if factors is None else rate * factors.mean(num_steps)

    def set_step_rate(self, optimizer: torch.optim.Optimizer, rates: Sequence[float], step: int) -> None:
        """Set the rates of a local step, counted from 0, if there is a schedule within visits; ``rates`` are the visit's."""
        if self.method.step_factors is not None:
            set_rates(optimizer, rates, self.method.step_factors(step + 1))

    def sent_down(self, visit: Visit) -> dict[str, Any]:
        """What a visit brings down in addition to the weights: nothing where the client does not receive."""
        if not visit.receives:
            return {}
        if visit.broadcast is not None:
            return visit.broadcast
        return self._both("broadcast", "broadcast", self.method.broadcast(visit.client), self.tasks.broadcast(visit.client))

    def begin_visit(self, net: nn.Module, client: Client) -> dict[str, Any]:
        """A client's carry, constant during its fit."""
        client = client.having(carry=self.tasks.begin_visit(net, client))
        return self._both("client_start", "carry", self.method.client_start(net, client), client.carry)

    def end_visit(self, net: nn.Module, client: Client) -> Upload:
        """A client's upload, after the learner of tasks has evaluated the model."""
        self.tasks.end_visit(net, client)
        upload = self._both("client_result", "upload", self.method.client_result(net, client), self.tasks.upload(net, client))
        for name, part in upload.items():
            held = part.tensors if isinstance(part, Weighted | Gathered) else None
            if not (isinstance(held, Mapping) and all(isinstance(of, Tensor) for of in held.values())):
                raise self._refusal(
                    "client_result", f"has {name!r}, must be tensors by name in a Weighted, with their weight, or in a Gathered"
                )
            if foreign := sorted(held.keys() - self._of_net[name].keys()) if name in self._of_net else []:
                raise self._refusal(
                    "client_result", f"has {foreign[0]!r} among the net's {name}: send it under an upload name of its own"
                )
        if not client.state.get("tasks", True):  # the learner looked, and keeps nothing
            del client.state["tasks"]
        return upload

    def probe(self, net: nn.Module, client: Client) -> dict[str, Tensor]:
        """Values of a visit for the server."""
        return self._both("probe", "probe", self.method.probe(net, client), self.tasks.probe(net, client))

    def _both(self, hook: str, what: str, of_method: dict[str, Any], of_learner: dict[str, Any]) -> dict[str, Any]:
        """The parts of both.

        Raises:
            ArgumentError: if the method's hook returns no dict.
            ValueError: if both have a name, as one would silently replace the other.
        """
        if not isinstance(of_method, dict):
            raise self._refusal(hook, f"returns {kind_of(of_method)}, must return a dict of tensors by name")
        for name in of_method.keys() & of_learner.keys():
            method, learner = type(self.method).__name__, type(self.tasks).__name__
            raise ValueError(f"{method} and its learner of tasks, {learner}, both have {name!r} in their {what}: rename one")
        return {**of_method, **of_learner}

    def kept_state(self, client: Client, state: ClientState) -> ClientState:
        """A client's state after a visit."""
        return self.tasks.kept_state(client, self.method.kept_state(client, state))

    def aggregate(self, reduced: Reduction) -> Update:
        """The server's update from the clients' weighted means, or from what a rule has instead of them."""
        if self.method.needs.each_upload:
            reduced = CombinedUploads(self.method, reduced)
        self.tasks.receive(reduced)
        update = self.method.aggregate(reduced)
        if not isinstance(update, Update):
            raise self._refusal("aggregate", f"returns {kind_of(update)}, must return an Update, as super().aggregate does")
        self._check_update("pseudo_gradient", update.pseudo_gradient, self._of_net["weights"])
        self._check_update("buffers", update.buffers, self._of_net["buffers"])
        return update

    def _check_update(self, part: str, tensors: State, of_net: State) -> None:
        """Check one part of an update against the tensors of the net."""
        for name, tensor in tensors.items():
            if name not in of_net:
                cure = did_you_mean(name, of_net, otherwise="give the names that net.state_dict() has")
                raise self._refusal("aggregate", f"has {name!r} in {part}, which the net has not: {cure}")
            if tensor.shape != of_net[name].shape:
                shapes = f"{tuple(tensor.shape)}, must be {tuple(of_net[name].shape)}"
                raise self._refusal("aggregate", f"has {name!r} in {part} of shape {shapes}")

    def _refusal(self, hook: str, problem: str) -> ArgumentError:
        return ArgumentError(f"{type(self.method).__name__}.{hook}", problem)

    def end_round(self, probes: list[State]) -> None:
        """End a round, after the global weights are updated; ``probes`` in the order of the cohort."""
        self.method.after_server_step(probes)
        self.tasks.end_round(probes)

    def after_undo(self) -> None:
        """Follow the weights and the buffers, which were restored to their values before the round."""
        self.method.after_undo()
        self.tasks.follow_buffers()
