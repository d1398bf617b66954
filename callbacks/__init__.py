"""What is watched during a run. Every callback here reads and changes nothing: a run without them ends in the same weights."""

from fl_lightning.callbacks.arriving_classes import ArrivingClasses
from fl_lightning.callbacks.ccvr import CCVR
from fl_lightning.callbacks.client_forgetting import ClientForgetting
from fl_lightning.callbacks.communication import Communication
from fl_lightning.callbacks.dashboard import Dashboard
from fl_lightning.callbacks.described_logger import DescribedTensorBoardLogger
from fl_lightning.callbacks.feature_drift import FeatureDrift
from fl_lightning.callbacks.federated_callback import FederatedCallback, log_figure, log_tensors
from fl_lightning.callbacks.figures import heatmap
from fl_lightning.callbacks.forgetting_events import ForgettingEvents
from fl_lightning.callbacks.head_by_class import HeadByClass
from fl_lightning.callbacks.inline_figures import InlineFigures
from fl_lightning.callbacks.label_counts import LabelCounts
from fl_lightning.callbacks.loss_increase import LossIncrease
from fl_lightning.callbacks.per_class_accuracy import PerClassAccuracy
from fl_lightning.callbacks.personal_accuracy import PersonalAccuracy
from fl_lightning.callbacks.predictions import PredictionWriter
from fl_lightning.callbacks.privacy_budget import PrivacyBudget
from fl_lightning.callbacks.progress import RoundProgressBar
from fl_lightning.callbacks.projected_ascent import ProjectedAscent
from fl_lightning.callbacks.pseudo_data_fisher import PseudoDataFisher
from fl_lightning.callbacks.reference_accuracy import ReferenceAccuracy
from fl_lightning.callbacks.representation_similarity import RepresentationSimilarity
from fl_lightning.callbacks.round_forgetting import RoundForgetting
from fl_lightning.callbacks.summary import RunSummary
from fl_lightning.callbacks.task_accuracy import TaskAccuracy
from fl_lightning.callbacks.task_attention import TaskAttention
from fl_lightning.callbacks.unlearning import Unlearning
from fl_lightning.callbacks.wise_ft import WiseFT
from fl_lightning.run.record_logger import RecordLogger

__all__ = [
    "CCVR",
    "ArrivingClasses",
    "ClientForgetting",
    "Communication",
    "Dashboard",
    "DescribedTensorBoardLogger",
    "FeatureDrift",
    "FederatedCallback",
    "ForgettingEvents",
    "HeadByClass",
    "InlineFigures",
    "LabelCounts",
    "LossIncrease",
    "PerClassAccuracy",
    "PersonalAccuracy",
    "PredictionWriter",
    "PrivacyBudget",
    "ProjectedAscent",
    "PseudoDataFisher",
    "RecordLogger",
    "ReferenceAccuracy",
    "RepresentationSimilarity",
    "RoundForgetting",
    "RoundProgressBar",
    "RunSummary",
    "TaskAccuracy",
    "TaskAttention",
    "Unlearning",
    "WiseFT",
    "heatmap",
    "log_figure",
    "log_tensors",
]
