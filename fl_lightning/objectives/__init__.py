"""Objectives: what the targets of a source mean, how outputs are scored against them, and what is forgotten."""

from fl_lightning.objectives.multi_label import MultiLabel
from fl_lightning.objectives.next_token import NextToken
from fl_lightning.objectives.objective import Entries, Objective
from fl_lightning.objectives.regression import Regression
from fl_lightning.objectives.single_label import SingleLabel

__all__ = ["Entries", "MultiLabel", "NextToken", "Objective", "Regression", "SingleLabel"]
