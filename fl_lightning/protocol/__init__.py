"""The messages between server and clients, and the client itself."""

from fl_lightning.functional.aggregation import State
from fl_lightning.protocol.batch import Batch, NetInputs, PlannedStep
from fl_lightning.protocol.client import Client, Gradients, Losses, Objective, Penalty, Protection, Visit, mean_gradient
from fl_lightning.protocol.client_state import ClientState, LearnedTask, SparseTensor
from fl_lightning.protocol.cohort import CohortFit, CohortModels, Inputs, RoundReport, evaluate_net, predict_in_batches
from fl_lightning.protocol.federation import ClientBatches, EvaluationName, Federation, PublicSamples, Site
from fl_lightning.protocol.hooks import overridden
from fl_lightning.protocol.learner import ClassProgress, Learner, TaskProgress
from fl_lightning.protocol.messages import Accuracy, Evaluation, Packed, Reply, Request, pack, unpack
from fl_lightning.protocol.needs import DataNeeds, Needs
from fl_lightning.protocol.upload import Gathered, Reduction, Update, Upload, Weighted

__all__ = [
    "Accuracy",
    "Batch",
    "ClassProgress",
    "Client",
    "ClientBatches",
    "ClientState",
    "CohortFit",
    "CohortModels",
    "DataNeeds",
    "Evaluation",
    "EvaluationName",
    "Federation",
    "Gathered",
    "Gradients",
    "Inputs",
    "LearnedTask",
    "Learner",
    "Losses",
    "Needs",
    "NetInputs",
    "Objective",
    "Packed",
    "Penalty",
    "PlannedStep",
    "Protection",
    "PublicSamples",
    "Reduction",
    "Reply",
    "Request",
    "RoundReport",
    "Site",
    "SparseTensor",
    "State",
    "TaskProgress",
    "Update",
    "Upload",
    "Visit",
    "Weighted",
    "evaluate_net",
    "mean_gradient",
    "overridden",
    "pack",
    "predict_in_batches",
    "unpack",
]
