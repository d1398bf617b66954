"""Federated continual learning: learners of tasks, which methods take as ``tasks``, and FedWeIT."""

from fl_lightning.data.class_stream import ClassStream, DomainStream
from fl_lightning.data.tasks import Tasks as Tasks
from fl_lightning.data.tasks import TaskStream
from fl_lightning.tasks.apd import APD
from fl_lightning.tasks.classes.ewc import ServerEWC
from fl_lightning.tasks.classes.glfc import GLFC
from fl_lightning.tasks.classes.icarl import ICaRL
from fl_lightning.tasks.classes.lander import LANDER
from fl_lightning.tasks.classes.learner import ClassArguments, ClassLearner
from fl_lightning.tasks.classes.lwf import LwF
from fl_lightning.tasks.classes.mfcl import MFCL
from fl_lightning.tasks.classes.replay import Replay
from fl_lightning.tasks.classes.target import TARGET
from fl_lightning.tasks.ewc import EWC
from fl_lightning.tasks.fedweit import FedWeIT
from fl_lightning.tasks.knowledge import WeightedTransfer
from fl_lightning.tasks.l2sp import L2SP
from fl_lightning.tasks.learner import TaskArguments, TaskLearner
from fl_lightning.tasks.pretrained_ewc import PretrainedEWC
from fl_lightning.tasks.single_task import SingleTask
from fl_lightning.tasks.stable_sgd import StableSGD
from fl_lightning.tasks.synaptic_intelligence import SynapticIntelligence

__all__ = [
    "APD",
    "EWC",
    "GLFC",
    "L2SP",
    "LANDER",
    "MFCL",
    "TARGET",
    "ClassArguments",
    "ClassLearner",
    "ClassStream",
    "DomainStream",
    "FedWeIT",
    "ICaRL",
    "LwF",
    "PretrainedEWC",
    "Replay",
    "ServerEWC",
    "SingleTask",
    "StableSGD",
    "SynapticIntelligence",
    "TaskArguments",
    "TaskLearner",
    "TaskStream",
    "WeightedTransfer",
]
