# What fl_lightning/__init__.py offers, for type checkers and for lazy_loader, which imports each where it is first used.
from . import callbacks as callbacks
from . import continual as continual
from . import data as data
from . import functional as functional
from . import losses as losses
from . import methods as methods
from . import models as models
from . import privacy as privacy
from .data import FederatedDataModule
from .methods import (
    MOON,
    SCAFFOLD,
    FedAvg,
    FedCurv,
    FedDF,
    FedDyn,
    FedGMA,
    FedNova,
    FedNTD,
    FedProx,
    FedReg,
    FedSGD,
    Flashback,
    Moon,
    Scaffold,
)
from .module import FederatedModule, Net
from .training.strategy import FederatedStrategy

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
    "FedReg",
    "FedSGD",
    "FederatedDataModule",
    "FederatedModule",
    "FederatedStrategy",
    "Flashback",
    "Moon",
    "Net",
    "Scaffold",
]
