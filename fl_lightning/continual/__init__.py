"""Federated continual learning: clients that learn sequences of tasks of their own."""

from fl_lightning.continual.apd import APD
from fl_lightning.continual.ewc import EWC
from fl_lightning.continual.federated import (
    FedAvgAPD,
    FedAvgEWC,
    FedAvgOnTasks,
    FedAvgStableSGD,
    FedCurvOnTasks,
    FedProxAPD,
    FedProxEWC,
    FedProxOnTasks,
    FedProxStableSGD,
    ScaffoldOnTasks,
)
from fl_lightning.continual.fedweit import FedWeIT
from fl_lightning.continual.learner import TaskLearner
from fl_lightning.continual.single_task import SingleTask
from fl_lightning.continual.stable_sgd import StableSGD
from fl_lightning.data.tasks import TaskStream

__all__ = [
    "APD",
    "EWC",
    "FedAvgAPD",
    "FedAvgEWC",
    "FedAvgOnTasks",
    "FedAvgStableSGD",
    "FedCurvOnTasks",
    "FedProxAPD",
    "FedProxEWC",
    "FedProxOnTasks",
    "FedProxStableSGD",
    "FedWeIT",
    "ScaffoldOnTasks",
    "SingleTask",
    "StableSGD",
    "TaskLearner",
    "TaskStream",
]
