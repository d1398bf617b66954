# What fl_lightning/__init__.py offers, for type checkers: it imports each where it is first used.
from . import callbacks as callbacks
from . import data as data
from . import forgetting as forgetting
from . import functional as functional
from . import losses as losses
from . import methods as methods
from . import models as models
from . import objectives as objectives
from . import privacy as privacy
from . import report as report
from . import robustness as robustness
from . import tasks as tasks
from .algorithm import FederatedAlgorithm as FederatedAlgorithm
from .data import FederatedDataModule as FederatedDataModule
from .methods import *
from .module import FederatedModule as FederatedModule
from .module import Net as Net
from .processes.strategy import FederatedStrategy as FederatedStrategy
from .protocol import Batch as Batch
from .protocol import Client as Client
from .protocol import ClientState as ClientState
from .protocol import DataNeeds as DataNeeds
from .protocol import Gathered as Gathered
from .protocol import Needs as Needs
from .protocol import Reduction as Reduction
from .protocol import Update as Update
from .protocol import Upload as Upload
from .protocol import Visit as Visit
from .protocol import Weighted as Weighted
from .run.arguments import CommonArguments as CommonArguments
from .trainer import Trainer as Trainer

__version__: str
