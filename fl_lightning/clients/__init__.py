"""How clients run: the local fit, what a client carries and sends, and the engines that run a cohort."""

from fl_lightning.clients.client import Client, Visit
from fl_lightning.clients.cohort import CohortFit, CohortModels, RoundReport
from fl_lightning.clients.reduction import Reduction, Upload, Weighted
from fl_lightning.clients.sequential import SequentialEngine, predict_in_batches

__all__ = [
    "Client",
    "CohortFit",
    "CohortModels",
    "Reduction",
    "RoundReport",
    "SequentialEngine",
    "Upload",
    "Visit",
    "Weighted",
    "predict_in_batches",
]
