"""A trained net for use without this library: as a program with its preparation of inputs, or as a folder of weights."""

from fl_lightning.export.model_folder import Weights, write_model_folder
from fl_lightning.export.program import Classifier, export, load_classifier

__all__ = ["Classifier", "Weights", "export", "load_classifier", "write_model_folder"]
