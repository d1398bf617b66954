"""Federated methods, one file each."""

from fl_lightning.methods.apfl import APFL
from fl_lightning.methods.ditto import Ditto
from fl_lightning.methods.fedacg import FedACG
from fl_lightning.methods.fedavg import FedAvg
from fl_lightning.methods.fedbabu import FedBABU
from fl_lightning.methods.fedbn import FedBN
from fl_lightning.methods.fedcm import FedCM
from fl_lightning.methods.fedcurv import FedCurv
from fl_lightning.methods.feddecorr import FedDecorr
from fl_lightning.methods.feddf import FedDF
from fl_lightning.methods.feddisco import FedDisco
from fl_lightning.methods.feddyn import FedDyn
from fl_lightning.methods.fedetf import FedETF
from fl_lightning.methods.fedexp import FedExP
from fl_lightning.methods.fedgma import FedGMA
from fl_lightning.methods.fedlmd import FedLMD
from fl_lightning.methods.fednova import FedNova
from fl_lightning.methods.fedntd import FedNTD
from fl_lightning.methods.fedper import FedPer
from fl_lightning.methods.fedprox import FedProx
from fl_lightning.methods.fedreg import FedReg
from fl_lightning.methods.fedrep import FedRep
from fl_lightning.methods.fedrod import FedRoD
from fl_lightning.methods.fedrs import FedRS
from fl_lightning.methods.fedsam import FedSAM
from fl_lightning.methods.fedsgd import FedSGD
from fl_lightning.methods.fedsol import FedSOL
from fl_lightning.methods.fedvarp import FedVARP
from fl_lightning.methods.flashback import Flashback
from fl_lightning.methods.lgfedavg import LGFedAvg
from fl_lightning.methods.localdistillation import LocalDistillation
from fl_lightning.methods.localonly import LocalOnly
from fl_lightning.methods.mofedsam import MoFedSAM
from fl_lightning.methods.moon import MOON
from fl_lightning.methods.pfedme import PFedMe
from fl_lightning.methods.scaffold import SCAFFOLD

__all__ = [
    "APFL",
    "MOON",
    "SCAFFOLD",
    "Ditto",
    "FedACG",
    "FedAvg",
    "FedBABU",
    "FedBN",
    "FedCM",
    "FedCurv",
    "FedDF",
    "FedDecorr",
    "FedDisco",
    "FedDyn",
    "FedETF",
    "FedExP",
    "FedGMA",
    "FedLMD",
    "FedNTD",
    "FedNova",
    "FedPer",
    "FedProx",
    "FedRS",
    "FedReg",
    "FedRep",
    "FedRoD",
    "FedSAM",
    "FedSGD",
    "FedSOL",
    "FedVARP",
    "Flashback",
    "LGFedAvg",
    "LocalDistillation",
    "LocalOnly",
    "MoFedSAM",
    "PFedMe",
]
