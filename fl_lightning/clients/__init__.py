"""How clients run: the local fit, what a client carries and sends, and the engines that run a cohort."""

from fl_lightning.clients.allocator import keep_freed_memory
from fl_lightning.clients.choose import ENGINES, start_engine
from fl_lightning.clients.client import Client, Objective, Visit
from fl_lightning.clients.cohort import CohortFit, CohortModels, RoundReport
from fl_lightning.clients.engine import Engine, predict_in_batches
from fl_lightning.clients.reduction import Gathered, Reduction, Upload, Weighted

__all__ = [
    "ENGINES",
    "Client",
    "CohortFit",
    "CohortModels",
    "Engine",
    "Gathered",
    "Objective",
    "Reduction",
    "RoundReport",
    "Upload",
    "Visit",
    "Weighted",
    "keep_freed_memory",
    "predict_in_batches",
    "start_engine",
]
