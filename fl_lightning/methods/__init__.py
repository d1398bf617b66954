"""Federated methods, one file each."""

from fl_lightning.methods.fedavg import FedAvg

__all__ = ["FedAvg"]
