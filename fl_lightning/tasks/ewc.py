"""EWC: weights that mattered to earlier tasks are held back.

J. Kirkpatrick et al.: Overcoming catastrophic forgetting in neural networks. PNAS 2017. arXiv 1612.00796. Equation 3, with a
term for each earlier task, and the empirical Fisher information of single samples with their true labels.
"""

from typing import Unpack

import torch
from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.protocol import Client, State
from fl_lightning.tasks.learner import TaskArguments, TaskLearner


class EWC(TaskLearner):
    """The loss plus ``penalty/2 * sum_j sum_i F_ji (w_i - theta_ji)^2`` over earlier tasks j of the client.

    theta_j are the client's weights after task j, F_j their empirical Fisher information on its training samples. The sum is
    expanded: a client keeps the sums of F_j and of ``F_j theta_j``, however many tasks it has learned.

    Args:
        penalty: lambda, at least 0. The paper searched .01 to 1; it scales with the loss's gradients of single samples.
        pace: arguments of :class:`TaskLearner`.

    Raises:
        ValueError: if ``penalty`` is negative.
    """

    unprotected = (*TaskLearner.unprotected, "the Fisher information")

    def __init__(self, penalty: float = 1.0, **pace: Unpack[TaskArguments]) -> None:
        super().__init__(**pace)
        check_range("model.tasks.penalty", penalty, at_least=0, hint="0 holds nothing back")
        self.penalty = penalty

    def client_penalty(self, net: nn.Module, client: Client) -> Tensor | float:
        terms = []
        weights, anchors = self.method.trained_weights(net), self.state_of(client).get("earlier_anchor", {})
        for name, fisher in self.state_of(client).get("earlier_fisher", {}).items():
            weight, anchor = weights[name], anchors[name]
            terms.append(self.penalty * (fisher * weight.square() / 2 - anchor * weight).sum())
        return sum(terms)

    def end_task(self, net: nn.Module, client: Client, position: int) -> None:
        super().end_task(net, client, position)
        sums = {kind: self.state_of(client).setdefault(kind, {}) for kind in ("earlier_fisher", "earlier_anchor")}
        for name, fisher in self._fisher(net, client).items():
            weight = net.get_parameter(name).detach()
            for kind, term in (("earlier_fisher", fisher), ("earlier_anchor", fisher * weight)):
                sums[kind][name] = sums[kind].get(name, torch.zeros_like(weight)) + term

    def _fisher(self, net: nn.Module, client: Client) -> State:
        """Of the weights that tasks share."""
        of_task = self.per_task_tensors(net).keys()
        return {name: tensor for name, tensor in self.fisher(net, client).items() if name not in of_task}
