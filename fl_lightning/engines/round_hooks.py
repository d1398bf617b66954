"""RoundHooks: a method's hooks as a round calls them, each combined with that of the method's learner of tasks."""

from typing import Any

from torch import Tensor, nn

from fl_lightning.algorithm import FederatedAlgorithm, LocalTraining
from fl_lightning.functional.aggregation import State
from fl_lightning.protocol import Client, ClientState, Reduction, Update, Upload
from fl_lightning.protocol.hooks import overridden


class RoundHooks:
    """The hooks that engines and servers call, in the order of a round.

    Args:
        method: the method.
    """

    def __init__(self, method: FederatedAlgorithm) -> None:
        self.method, self.tasks = method, method.tasks

    @property
    def prepares(self) -> bool:
        """Whether :meth:`begin_visit` does anything."""
        return self.tasks.prepares or bool(overridden(self.method, LocalTraining.client_start))

    @property
    def reads_models(self) -> bool:
        """Whether a visit ends with an evaluation of the client's model, which FedAvg does not have."""
        ours = LocalTraining
        return self.tasks.reads_models or bool(overridden(self.method, ours.client_result, ours.kept_state, ours.probe))

    def rate_factor(self, round: int, client: int) -> float:
        """Factor on the rate of a client's optimizer."""
        return self.tasks.rate_factor(client) * self.method.client_learning_rate(round, client)

    def broadcast(self, client: int) -> dict[str, Any]:
        """Tensors sent down to a client in addition to the weights."""
        return self._both("broadcast", self.method.broadcast(client), self.tasks.broadcast(client))

    def begin_visit(self, net: nn.Module, client: Client) -> dict[str, Any]:
        """A client's carry, constant during its fit."""
        client = client.having(carry=self.tasks.begin_visit(net, client))
        return self._both("carry", self.method.client_start(net, client), client.carry)

    def end_visit(self, net: nn.Module, client: Client) -> Upload:
        """A client's upload, after the learner of tasks has evaluated the model."""
        self.tasks.end_visit(net, client)
        upload = self._both("upload", self.method.client_result(net, client), self.tasks.upload(net, client))
        if not client.state.get("tasks", True):  # the learner looked, and keeps nothing
            del client.state["tasks"]
        return upload

    def probe(self, net: nn.Module, client: Client) -> dict[str, Tensor]:
        """Values of a visit for the server."""
        return self._both("probe", self.method.probe(net, client), self.tasks.probe(net, client))

    def _both(self, what: str, of_method: dict[str, Any], of_learner: dict[str, Any]) -> dict[str, Any]:
        """The parts of both.

        Raises:
            ValueError: if both have a name, as one would silently replace the other.
        """
        for name in of_method.keys() & of_learner.keys():
            method, learner = type(self.method).__name__, type(self.tasks).__name__
            raise ValueError(f"{method} and its learner of tasks, {learner}, both have {name!r} in their {what}: rename one")
        return {**of_method, **of_learner}

    def kept_state(self, client: Client, state: ClientState) -> ClientState:
        """A client's state after a visit."""
        return self.tasks.kept_state(client, self.method.kept_state(client, state))

    def aggregate(self, reduced: Reduction) -> Update:
        """The server's update from the clients' weighted means."""
        self.tasks.receive(reduced)
        return self.method.aggregate(reduced)

    def end_round(self, probes: list[State]) -> None:
        """End a round, after the global weights are updated.

        Args:
            probes: in the order of the cohort.
        """
        self.method.after_server_step(probes)
        self.tasks.end_round(probes)

    def after_undo(self) -> None:
        """Follow the weights and the buffers, which were restored to their values before the round."""
        self.method.after_undo()
        self.tasks.after_undo()
