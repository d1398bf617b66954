"""Federated learning on PyTorch Lightning that shows what a model forgets."""

from fl_lightning.data import FederatedDataModule
from fl_lightning.methods import FedAvg
from fl_lightning.module import FederatedModule, Net
from fl_lightning.strategy import FederatedStrategy

__all__ = ["FedAvg", "FederatedDataModule", "FederatedModule", "FederatedStrategy", "Net"]
