"""Federated learning on PyTorch Lightning that shows what a model forgets."""

from pathlib import Path

from fl_lightning.data import FederatedDataModule
from fl_lightning.methods import (
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
from fl_lightning.module import FederatedModule, Net
from fl_lightning.strategy import FederatedStrategy

__all__ = [
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

# In the source tree callbacks/ and configs/ are folders next to this one: a python that starts there finds them as well.
if not (Path(__file__).parent / "callbacks").is_dir():
    __path__.append(str(Path(__file__).parent.parent))
