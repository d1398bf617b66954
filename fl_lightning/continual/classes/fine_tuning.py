"""Fine-tuning by FedAvg and FedProx on classes that arrive: what every other method is compared with."""

from fl_lightning.continual.classes.learner import ClassLearner
from fl_lightning.methods import FedAvg, FedProx


class FedAvgOnClasses(ClassLearner, FedAvg):
    """FedAvg on each task in turn, the lower bound; on a cumulative stream joint training, the upper one."""


class FedProxOnClasses(ClassLearner, FedProx):
    """FedProx on each task in turn."""
