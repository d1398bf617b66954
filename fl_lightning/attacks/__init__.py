"""What an observer recovers from the updates that clients send: ``fl-lightning attack`` in Python."""

from fl_lightning.attacks.attack import AttackedRun, load_run
from fl_lightning.attacks.inversion import Inversion, Inverter, Recovered
from fl_lightning.attacks.observed_update import Observation, ObservedRound, PixelRange, observe
from fl_lightning.attacks.scores import ClientScore, ImageScore, score

__all__ = [
    "AttackedRun",
    "ClientScore",
    "ImageScore",
    "Inversion",
    "Inverter",
    "Observation",
    "ObservedRound",
    "PixelRange",
    "Recovered",
    "load_run",
    "observe",
    "score",
]
