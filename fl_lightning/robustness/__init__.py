"""Hostile clients, ``--model.hostile SignFlip``, and rules that withstand them, ``--model.aggregation Krum``."""

from fl_lightning.robustness.aggregation import Aggregation
from fl_lightning.robustness.alie import ALIE
from fl_lightning.robustness.centered_clipping import CenteredClipping
from fl_lightning.robustness.coordinate_median import CoordinateMedian
from fl_lightning.robustness.hostile import Hostile
from fl_lightning.robustness.ipm import IPM
from fl_lightning.robustness.krum import Krum
from fl_lightning.robustness.label_flip import LabelFlip
from fl_lightning.robustness.model_replacement import ModelReplacement
from fl_lightning.robustness.rfa import RFA
from fl_lightning.robustness.sign_flip import SignFlip
from fl_lightning.robustness.trimmed_mean import TrimmedMean

__all__ = [
    "ALIE",
    "IPM",
    "RFA",
    "Aggregation",
    "CenteredClipping",
    "CoordinateMedian",
    "Hostile",
    "Krum",
    "LabelFlip",
    "ModelReplacement",
    "SignFlip",
    "TrimmedMean",
]
