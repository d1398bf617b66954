"""The messages between server and clients, and the client itself."""

from fl_lightning.protocol.batch import Batch, NetInputs, PlannedStep
from fl_lightning.protocol.client import Client, Objective, Visit
from fl_lightning.protocol.client_state import ClientState, LearnedTask, SparseTensor
from fl_lightning.protocol.cohort import CohortFit, CohortModels, RoundReport, evaluate_net, predict_in_batches
from fl_lightning.protocol.federation import ClientBatches, EvaluationName, Federation, PublicSamples, Site
from fl_lightning.protocol.learner import Learner
from fl_lightning.protocol.messages import Accuracy, Evaluation, Packed, Reply, Request, pack, unpack
from fl_lightning.protocol.needs import DataNeeds, Needs
from fl_lightning.protocol.protection import Protection
from fl_lightning.protocol.shown import ClassProgress, TaskProgress
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
    "LearnedTask",
    "Learner",
    "Needs",
    "NetInputs",
    "Objective",
    "Packed",
    "PlannedStep",
    "Protection",
    "PublicSamples",
    "Reduction",
    "Reply",
    "Request",
    "RoundReport",
    "Site",
    "SparseTensor",
    "TaskProgress",
    "Update",
    "Upload",
    "Visit",
    "Weighted",
    "evaluate_net",
    "pack",
    "predict_in_batches",
    "unpack",
]
