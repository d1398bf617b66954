"""Federated methods, one file each."""

from fl_lightning.methods.fedavg import FedAvg
from fl_lightning.methods.fedcurv import FedCurv
from fl_lightning.methods.feddf import FedDF
from fl_lightning.methods.feddyn import FedDyn
from fl_lightning.methods.fedgma import FedGMA
from fl_lightning.methods.fednova import FedNova
from fl_lightning.methods.fedntd import FedNTD
from fl_lightning.methods.fedprox import FedProx
from fl_lightning.methods.fedreg import FedReg
from fl_lightning.methods.fedrs import FedRS
from fl_lightning.methods.fedsgd import FedSGD
from fl_lightning.methods.flashback import Flashback
from fl_lightning.methods.former_names import Moon as Moon
from fl_lightning.methods.former_names import Scaffold as Scaffold
from fl_lightning.methods.moon import MOON
from fl_lightning.methods.scaffold import SCAFFOLD

__all__ = [
    "MOON",
    "SCAFFOLD",
    "FedAvg",
    "FedCurv",
    "FedDF",
    "FedDyn",
    "FedGMA",
    "FedNTD",
    "FedNova",
    "FedProx",
    "FedRS",
    "FedReg",
    "FedSGD",
    "Flashback",
]
