"""Federated continual learning: every client learns its sequence of tasks."""

from fl_lightning.continual.apd import APD
from fl_lightning.continual.classes.ewc import ServerEWC
from fl_lightning.continual.classes.glfc import GLFC
from fl_lightning.continual.classes.icarl import ICaRL
from fl_lightning.continual.classes.learner import ClassLearner
from fl_lightning.continual.classes.lwf import FedLwF
from fl_lightning.continual.classes.mfcl import MFCL
from fl_lightning.continual.classes.replay import Replay
from fl_lightning.continual.ewc import EWC
from fl_lightning.continual.federated import combined
from fl_lightning.continual.fedweit import FedWeIT
from fl_lightning.continual.learner import TaskLearner
from fl_lightning.continual.single_task import SingleTask
from fl_lightning.continual.stable_sgd import StableSGD
from fl_lightning.data.class_stream import ClassStream, DomainStream
from fl_lightning.data.tasks import Tasks as Tasks
from fl_lightning.data.tasks import TaskStream
from fl_lightning.module import FederatedModule

__all__ = [
    "APD",
    "EWC",
    "GLFC",
    "MFCL",
    "ClassLearner",
    "ClassStream",
    "DomainStream",
    "FedLwF",
    "FedWeIT",
    "ICaRL",
    "Replay",
    "ServerEWC",
    "SingleTask",
    "StableSGD",
    "TaskLearner",
    "TaskStream",
]


def __getattr__(name: str) -> type[FederatedModule]:
    """``FedProxEWC`` and the like: a method of :mod:`fl_lightning.methods` and a learner, made when it is asked for."""
    if (kind := combined(name)) is not None:
        return kind
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
