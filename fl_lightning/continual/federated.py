"""Federated methods whose clients learn tasks: every local learner with every federation, by one name for both.

As compared in J. Yoon, W. Jeong, G. Lee, E. Yang, S. J. Hwang: Federated Continual Learning with Weighted Inter-client
Transfer. ICML 2021: the body goes through the server in every round, the weights of single tasks stay with the client.
"""

from typing import Any

from fl_lightning.checks import check_range
from fl_lightning.continual.apd import APD
from fl_lightning.continual.ewc import EWC
from fl_lightning.continual.learner import TaskLearner
from fl_lightning.continual.stable_sgd import StableSGD
from fl_lightning.methods import SCAFFOLD, FedAvg, FedCurv, FedProx
from fl_lightning.module import FederatedModule, Net

_LEARNERS: dict[str, type[TaskLearner]] = {"OnTasks": TaskLearner, "EWC": EWC, "StableSGD": StableSGD, "APD": APD}
_FEDERATIONS: tuple[type[FederatedModule], ...] = (FedAvg, FedProx, SCAFFOLD, FedCurv)


class FedCurvEWC(EWC, FedCurv):
    """EWC in the federation of FedCurv, which has a penalty each.

    Args:
        penalty: EWC's lambda, over a client's earlier tasks.
        others_penalty: FedCurv's, over other clients, at least 0.

    Raises:
        ValueError: if a value is out of range.
    """

    federated = True

    def __init__(self, net: Net, penalty: float = 1.0, others_penalty: float = 1e-4, **common: Any) -> None:
        super().__init__(net, penalty, **common)
        check_range("model.others_penalty", others_penalty, at_least=0, hint="0 leaves FedCurv's term out")
        self.others_penalty = others_penalty


def _combined(name: str, learner: type[TaskLearner], federation: type[FederatedModule]) -> type[TaskLearner]:
    """The learner's hooks before those of the federation, with the arguments of both."""
    doc = f"Hooks and arguments of :class:`{learner.__name__}` and, for what goes through the server, of {federation.__name__}."
    return type(name, (learner, federation), {"federated": True, "__module__": "fl_lightning.continual", "__doc__": doc})


COMBINATIONS = {
    name: FedCurvEWC if name == FedCurvEWC.__name__ else _combined(name, learner, federation)
    for federation in _FEDERATIONS
    for ending, learner in _LEARNERS.items()
    for name in [f"{federation.__name__}{ending}"]
}
"""By name: ``FedProxEWC`` is EWC in the federation of FedProx, ``FedProxOnTasks`` FedProx alone."""


class ScaffoldOnTasks(TaskLearner, SCAFFOLD):
    """``SCAFFOLDOnTasks`` under its former name, for one release."""
