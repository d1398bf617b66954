"""What crosses the wire between server and clients, and what a client is."""

from fl_lightning.exchange.batch import Batch, PlannedStep
from fl_lightning.exchange.client import Client, Objective, Visit
from fl_lightning.exchange.client_state import ClientState, LearnedTask, SparseTensor
from fl_lightning.exchange.cohort import CohortFit, CohortModels, RoundReport, predict_in_batches
from fl_lightning.exchange.federation import ClientBatches, EvaluationName, Federation
from fl_lightning.exchange.needs import Needs
from fl_lightning.exchange.protection import Protection
from fl_lightning.exchange.reduction import Gathered, Reduction, Update, Upload, Weighted
from fl_lightning.exchange.shown import ClassProgress, Shown, TaskProgress

__all__ = [
    "Batch",
    "ClassProgress",
    "Client",
    "ClientBatches",
    "ClientState",
    "CohortFit",
    "CohortModels",
    "EvaluationName",
    "Federation",
    "Gathered",
    "LearnedTask",
    "Needs",
    "Objective",
    "PlannedStep",
    "Protection",
    "Reduction",
    "RoundReport",
    "Shown",
    "SparseTensor",
    "TaskProgress",
    "Update",
    "Upload",
    "Visit",
    "Weighted",
    "predict_in_batches",
]
