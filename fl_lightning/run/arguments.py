"""The common arguments of methods, by name and type, for ``**common: Unpack[CommonArguments]``.

Defaults and help are those of :class:`fl_lightning.algorithm.LocalTraining` and :class:`fl_lightning.FederatedModule`. A
keyword of a typed dict must not also be an argument of the function, so a method with its own default takes the others.
"""

from collections.abc import Sequence
from typing import Literal, TypedDict

from fl_lightning.algorithm import ServerWeighting
from fl_lightning.engines.engine_choice import EngineName
from fl_lightning.functional.schedules import ScheduleBuilder
from fl_lightning.losses import Loss, TorchLosses
from fl_lightning.models import Adapter
from fl_lightning.models.federated_net import BatchNormBuffers
from fl_lightning.optimizers import OptimizerBuilder
from fl_lightning.privacy import Privacy
from fl_lightning.protocol import Learner
from fl_lightning.robustness import Aggregation, Hostile

StorageOfStates = Literal["memory", "disk"]


class TrainingArguments(TypedDict, total=False):
    """Arguments that every ``FederatedAlgorithm`` has, whatever it is."""

    loss: Loss | TorchLosses
    optimizer: OptimizerBuilder
    local_steps: int | None
    local_epochs: int | None
    learning_rate_decay: float
    client_lr_scheduler: ScheduleBuilder | None
    visit_lr_scheduler: ScheduleBuilder | None
    micro_batch_size: int | None
    clip_local_gradients: float | None
    batch_norm_buffers: BatchNormBuffers
    seed: int
    aggregation: Aggregation | None
    hostile: Hostile | None
    adapter: Adapter | None
    trained: Sequence[str] | None
    personal: Sequence[str] | None
    class_layer: str | None


class _OfRun(TypedDict, total=False):
    server_optimizer: OptimizerBuilder
    lr_scheduler: ScheduleBuilder | None
    engine: EngineName
    client_state: StorageOfStates
    privacy: Privacy | None
    initial_weights: str | None


class AlgorithmArguments(TrainingArguments, total=False):
    """Arguments of ``FederatedAlgorithm``."""

    server_weighting: ServerWeighting
    tasks: Learner | None


class CommonArguments(AlgorithmArguments, _OfRun, total=False):
    """Arguments of every method."""


class ArgumentsButWeightingAndTasks(TrainingArguments, _OfRun, total=False):
    """Arguments of a method with its own ``server_weighting`` and ``tasks``."""


class ArgumentsButWeighting(ArgumentsButWeightingAndTasks, total=False):
    """Arguments of a method with its own ``server_weighting``."""

    tasks: Learner | None
