# What fl_lightning/__init__.py offers, for type checkers: it imports each where it is first used.
from . import callbacks as callbacks
from . import continual as continual
from . import data as data
from . import functional as functional
from . import losses as losses
from . import methods as methods
from . import models as models
from . import privacy as privacy
from . import report as report
from .algorithm import FederatedAlgorithm as FederatedAlgorithm
from .data import FederatedDataModule as FederatedDataModule
from .exchange import Batch as Batch
from .exchange import Client as Client
from .exchange import ClientState as ClientState
from .exchange import Gathered as Gathered
from .exchange import Needs as Needs
from .exchange import Reduction as Reduction
from .exchange import Update as Update
from .exchange import Upload as Upload
from .exchange import Visit as Visit
from .exchange import Weighted as Weighted
from .methods import *
from .methods import Moon as Moon
from .methods import Scaffold as Scaffold
from .module import FederatedModule as FederatedModule
from .module import Net as Net
from .training.strategy import FederatedStrategy as FederatedStrategy

__version__: str
