"""SynapticIntelligence: weights that lowered the loss of earlier tasks are held back.

F. Zenke, B. Poole, S. Ganguli: Continual Learning Through Synaptic Intelligence. ICML 2017. arXiv 1703.04200. Equations 3 to 5.
The sum of importances is clipped at 0, as in the authors' code: below 0 the penalty would drive weights away. The paper has one
learner. In a federation a client's path consists of its own local steps. Averaging also moves its weights between two visits;
this counts neither as a contribution, since the gradient there is unknown, nor as distance.
"""

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import Batch, Client, State, overridden
from fl_lightning.tasks.learner import TaskArguments, TaskLearner

_OF_TASK = ("path", "moved")  # groups of a client's state while a task lasts
_OF_STEP = ("path_weights", "path_gradients")  # and during a fit: of the step before


class SynapticIntelligence(TaskLearner):
    """The loss plus ``penalty * sum_i Omega_i (w_i - theta_i)^2``, theta the client's weights after the previous task.

    ``Omega = sum_j omega_j / (moved_j^2 + damping)`` over earlier tasks j of the client, ``omega_j = -sum g * dw`` and
    ``moved_j = sum dw`` over its local steps in task j, g the gradient of the loss without any penalty, dw the step's change.

    Args:
        penalty: c, at least 0. The authors' code has 1 for split MNIST.
        damping: xi, above 0: bounds the importance of weights that hardly moved. The authors' code has 0.001 for split MNIST
            and split CIFAR-10, 0.1 for permuted MNIST.
        pace: arguments of :class:`TaskLearner`.

    Raises:
        ValueError: if ``penalty`` or ``damping`` is out of range.
    """

    def __init__(self, penalty: float = 1.0, damping: float = 1e-3, **pace: Unpack[TaskArguments]) -> None:
        super().__init__(**pace)
        check_range("model.tasks.penalty", penalty, at_least=0, hint="0 holds nothing back")
        check_range("model.tasks.damping", damping, above=0, hint="the authors' code has 0.001")
        self.penalty, self.damping = penalty, damping

    def obstacle_to(self, method: FederatedModule) -> str | None:
        if (why := super().obstacle_to(method)) is not None:
            return why
        if overridden(method, FederatedModule.client_step):
            return "takes other local steps, whose gradients are not on the path: use one that does not, such as FedAvg"
        return None

    def begin_task(self, net: nn.Module, client: Client, position: int) -> None:
        super().begin_task(net, client, position)
        for group in _OF_TASK:  # of a task that ended without the client
            self.state_of(client).pop(group, None)

    def begin_visit(self, net: nn.Module, client: Client) -> dict[str, Any]:
        carry = super().begin_visit(net, client)
        weights = self._followed(net)
        zeros = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        for group in _OF_TASK:
            self.state_of(client).setdefault(group, zeros)
        self.state_of(client)["path_weights"] = {name: weight.clone() for name, weight in weights.items()}
        self.state_of(client)["path_gradients"] = zeros
        return carry

    def client_gradients(self, net: nn.Module, batch: Batch, client: Client) -> tuple[Sequence[Tensor], Tensor]:
        method = self.method
        gradients, loss = client.estimate(net, batch, client, lambda: method.client_loss(net, batch, client))
        self._follow(net, client)
        named = dict(zip(method.trained_weights(net), gradients, strict=True))
        self.state_of(client)["path_gradients"] = {name: named[name] for name in self.state_of(client)["path"]}
        if not isinstance(method.total_penalty(net, client), Tensor):
            return gradients, loss
        of_penalty, _ = client.differentiate(lambda: (torch.as_tensor(method.total_penalty(net, client)), loss))
        return [ours + other for ours, other in zip(gradients, of_penalty, strict=True)], loss

    def client_penalty(self, net: nn.Module, client: Client) -> Tensor | float:
        weights, reference = self.method.trained_weights(net), self.state_of(client).get("reference", {})
        importance = self.state_of(client).get("importance", {}).items()
        return self.penalty * sum((omega * (weights[name] - reference[name]).square()).sum() for name, omega in importance)

    def end_visit(self, net: nn.Module, client: Client) -> None:
        self._follow(net, client)
        for group in _OF_STEP:
            del self.state_of(client)[group]
        come = {name: weight - client.received_state[name] for name, weight in self._followed(net).items()}
        self.state_of(client)["moved"] = {name: moved + come[name] for name, moved in self.state_of(client)["moved"].items()}
        super().end_visit(net, client)

    def end_task(self, net: nn.Module, client: Client, position: int) -> None:
        super().end_task(net, client, position)
        path, moved = (self.state_of(client).pop(group) for group in _OF_TASK)
        earlier = self.state_of(client).get("importance", {})
        new = {name: omega / (moved[name].square() + self.damping) for name, omega in path.items()}
        self.state_of(client)["importance"] = {
            name: (earlier.get(name, 0.0) + omega).clamp_min(0.0) for name, omega in new.items()
        }
        self.state_of(client)["reference"] = {name: weight.clone() for name, weight in self._followed(net).items()}

    def _follow(self, net: nn.Module, client: Client) -> None:
        """Add the contribution of the previous local step: its gradient times the weights' change since."""
        state = self.state_of(client)
        weights = {name: weight.clone() for name, weight in self._followed(net).items()}
        before, gradients = (state[group] for group in _OF_STEP)
        state["path"] = {name: path - gradients[name] * (weights[name] - before[name]) for name, path in state["path"].items()}
        state["path_weights"] = weights

    def _followed(self, net: nn.Module) -> State:
        """The trained weights that tasks share; shares memory."""
        weights = self.method.trained_weights(net).items()
        return {name: weight.detach() for name, weight in weights if not self.is_per_task(name)}
