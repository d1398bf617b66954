"""Federated methods on task streams, and continual methods that clients share through a server.

As compared in J. Yoon, W. Jeong, G. Lee, E. Yang, S. J. Hwang: Federated Continual Learning with Weighted Inter-client
Transfer. ICML 2021: the body goes through the server in every round, what each task has of its own stays with the client.
"""

from fl_lightning.continual.apd import APD
from fl_lightning.continual.ewc import EWC
from fl_lightning.continual.learner import TaskLearner
from fl_lightning.continual.stable_sgd import StableSGD
from fl_lightning.methods import SCAFFOLD, FedCurv, FedProx


class FedAvgOnTasks(TaskLearner):
    """FedAvg."""


class FedProxOnTasks(TaskLearner, FedProx):
    """FedProx; the paper's mu is 5e-3."""


class ScaffoldOnTasks(TaskLearner, SCAFFOLD):
    """SCAFFOLD."""


class FedCurvOnTasks(TaskLearner, FedCurv):
    """FedCurv."""


class FedAvgEWC(EWC):
    """EWC, averaged after every round."""

    federated = True


class FedProxEWC(EWC, FedProx):
    """EWC with FedProx's pull, averaged after every round."""

    federated = True


class FedAvgStableSGD(StableSGD):
    """StableSGD, averaged after every round."""

    federated = True


class FedProxStableSGD(StableSGD, FedProx):
    """StableSGD with FedProx's pull, averaged after every round."""

    federated = True


class FedAvgAPD(APD):
    """APD whose shared part is averaged after every round; its way in a task begins at what the client received first in it."""

    federated = True


class FedProxAPD(APD, FedProx):
    """APD with FedProx's pull on the shared part, averaged after every round."""

    federated = True
