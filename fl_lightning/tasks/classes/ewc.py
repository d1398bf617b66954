"""ServerEWC: weights of the global model that mattered to earlier tasks are held back.

J. Kirkpatrick et al.: Overcoming catastrophic forgetting in neural networks. PNAS 2017. arXiv 1612.00796. Equation 3 on the
global model, with one anchor and a running sum of Fisher information (J. Schwarz et al.: Progress & Compress, ICML 2018, online
EWC). Departures: only the clients of the cohort of a task's last round measure the empirical Fisher information. They measure
it on the model that they receive, which is one round older than the anchor; another exchange after it would cost as much as a
round.
"""

from typing import Any, Unpack

import torch
from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.models.federated_net import shared_zeros
from fl_lightning.protocol import Client, Reduction, Upload, Weighted
from fl_lightning.tasks.classes.learner import ClassArguments, ClassLearner

_SENT = ("task_fisher", "task_anchor")  # FedCurv, with which this combines, has others


class ServerEWC(ClassLearner):
    """The loss plus ``lambda/2 * sum_i F_i (w_i - theta_i)^2`` from the second task on.

    theta is the global model at the end of the previous task. F is the sum over earlier tasks of the clients' mean Fisher
    information, weighted by their samples; it is 0 for new rows of the head.

    Args:
        penalty: lambda, at least 0; 0 is fine-tuning exactly.
        gamma: factor on F of the earlier tasks when a task ends, in [0, 1]; 1 gives their sum.

    Raises:
        ValueError: if one of them is out of range.
    """

    unprotected = ("the Fisher information",)

    def __init__(self, penalty: float = 100.0, gamma: float = 1.0, **common: Unpack[ClassArguments]) -> None:
        super().__init__(**common)
        check_range("model.tasks.penalty", penalty, at_least=0, hint="0 is fine-tuning")
        check_range("model.tasks.gamma", gamma, at_least=0, at_most=1, hint="1 is the sum over tasks")
        self.penalty, self.gamma = penalty, gamma

    def begin_run(self) -> None:
        super().begin_run()
        for kind in ("newest_task_fisher", *_SENT):
            self.method.server_states.add(kind, shared_zeros(self.method))

    def broadcast(self, client: int) -> dict[str, Any]:
        return {kind: self.method.server_states.tensors(kind) for kind in _SENT} if self.task > 0 and self.penalty > 0 else {}

    def begin_visit(self, net: nn.Module, client: Client) -> dict[str, Any]:
        carry = super().begin_visit(net, client)
        if not self.clocks.is_last_round(0) or self.penalty == 0:
            return carry
        return {**carry, "task_fisher": self.fisher(net, client.having(carry=carry))}  # of the classes that compete

    def client_penalty(self, net: nn.Module, client: Client) -> Tensor | float:
        if "task_fisher" not in client.broadcast:
            return 0.0
        weights, held, anchor = self.method.trained_weights(net), *(client.broadcast[kind] for kind in _SENT)
        terms = [(fisher * (weights[name] - anchor[name]).square()).sum() for name, fisher in held.items()]
        return self.penalty / 2 * torch.stack(terms).sum()

    def upload(self, net: nn.Module, client: Client) -> Upload:
        carried = "task_fisher" in client.carry
        return {"task_fisher": Weighted(client.carry["task_fisher"], float(client.num_train))} if carried else {}

    def receive(self, reduced: Reduction) -> None:
        if "task_fisher" in reduced.names:
            newest = self.method.server_states.tensors("newest_task_fisher")
            for name, mean in reduced.mean("task_fisher").items():
                newest[name].copy_(mean)

    def end_task(self) -> None:
        super().end_task()
        kinds = ("task_fisher", "newest_task_fisher", "task_anchor")
        fisher, newest, anchor = (self.method.server_states.tensors(kind) for kind in kinds)
        weights = self.method.trained_weights(self.method.net)
        for name in fisher:
            fisher[name].mul_(self.gamma).add_(newest[name])
            newest[name].zero_()
            anchor[name].copy_(weights[name].detach())
            if name in self.head.names:  # later classes, which blurry borders bring early, get new rows
                fisher[name][self.arrived.num_seen :] = 0
