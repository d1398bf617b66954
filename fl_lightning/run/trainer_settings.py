"""Settings of Lightning's trainer that a round cannot honour, or that Lightning refuses, by name.

A check raises a ValueError that names the setting, its value and the cure.
"""

import os
import re
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any

from jsonargparse import Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.profilers import PyTorchProfiler
from lightning.pytorch.strategies import SingleDeviceStrategy

from fl_lightning.checks import check_range
from fl_lightning.checks.extras import needing_extra
from fl_lightning.data import FederatedDataModule
from fl_lightning.processes.strategy import FederatedStrategy
from fl_lightning.processes.torchrun_store import num_started

# Settings with choices that can need a missing library; the library's error does not name the setting.
_NEED_LIBRARIES = ("accelerator", "strategy", "precision", "profiler")
_LIBRARIES = {"WandbLogger": "wandb", "MLFlowLogger": "mlflow"}  # of Lightning's loggers: that and the extra that installs it
# Settings that a round does not have: their default, and what to use instead.
_NOT_OF_ROUNDS = {
    "max_epochs": ((None, -1), "give max_steps"),
    "min_epochs": ((None, 0), "give min_steps"),
    "check_val_every_n_epoch": ((None, 1), "give val_check_interval, in rounds"),
    "gradient_clip_val": ((None, 0, 0.0), "use model.clip_local_gradients for the clients' gradients"),
    "gradient_clip_algorithm": ((None,), "use model.clip_local_gradients, which clips by the norm"),
    "accumulate_grad_batches": ((1,), "use model.micro_batch_size, which cuts a larger data.batch_size"),
    "reload_dataloaders_every_n_epochs": ((0,), "leave it out"),
    "overfit_batches": ((0, 0.0), "give max_steps"),  # Lightning sets the next one by it
    "limit_train_batches": ((None, 1.0), "give max_steps"),
}
_CALLBACKS_NOT_OF_ROUNDS: dict[type[Callback], str] = {
    StochasticWeightAveraging: "use lightning.pytorch.callbacks.WeightAveraging",
    GradientAccumulationScheduler: "use model.micro_batch_size, which cuts a larger data.batch_size",
    BaseFinetuning: "use model.trained for the weights to train",
    BatchSizeFinder: "leave it out",
    LearningRateFinder: "use fl-lightning sweep",
    ModelPruning: "leave it out",
    OnExceptionCheckpoint: "leave it out, and resume from the last.ckpt of ModelCheckpoint, which is of a whole round",
}
_TIME = r"\d+:\d\d:\d\d:\d\d"


def check_trainer_settings(trainer: Namespace, subcommand: str) -> None:
    """Check the command line's settings of a trainer, before it exists.

    Raises:
        ModuleNotFoundError: if a logger's library is missing.
    """
    _check_libraries(trainer.logger)
    if trainer.precision is not None:
        refuse_float16(str(trainer.precision))  # on a CPU Lightning would silently take bfloat16 instead
    if subcommand == "fit":
        _check_rounds(trainer.max_steps, trainer.min_steps)
        _check_cadence(trainer.val_check_interval)
        if isinstance(trainer.max_time, str) and not re.fullmatch(_TIME, trainer.max_time):
            raise ValueError(f"trainer.max_time is {trainer.max_time}, must be days:hours:minutes:seconds, such as 00:12:00:00")
        if trainer.log_every_n_steps is not None:
            check_range("trainer.log_every_n_steps", trainer.log_every_n_steps, at_least=0, hint="rounds, 0 is never")


def _check_libraries(loggers: object) -> None:
    given = loggers if isinstance(loggers, list) else [loggers]
    for logger in [one for one in given if isinstance(one, Namespace)]:
        name = logger.class_path.rpartition(".")[2]
        if name in _LIBRARIES:
            with needing_extra(_LIBRARIES[name], f"trainer.logger {name}"):
                import_module(_LIBRARIES[name])
        if name == "MLFlowLogger" and "tracking_uri" in logger.init_args:
            _check_store(logger.init_args.tracking_uri)


def _check_store(address: str | None) -> None:
    """MLflow no longer supports folders of files, Lightning's default; newer releases refuse them and name no key."""
    elsewhere = address is not None and (address.startswith("databricks") or ":" in address.removeprefix("file:"))
    if not elsewhere and "MLFLOW_ALLOW_FILE_STORE" not in os.environ:
        given = "not set, which means a folder" if address is None else f"{address}, which is a folder"
        raise ValueError(
            f"trainer.logger.tracking_uri is {given}, but MLflow needs a database or a server: set it to one, such as "
            "sqlite:///mlflow.db"
        )


@contextmanager
def naming_settings(settings: dict[str, Any]) -> Iterator[None]:
    """Put the key and the value of a trainer's setting before Lightning's message."""
    try:
        yield
    except (MisconfigurationException, ValueError, TypeError, ImportError) as error:
        message = " ".join(str(error).split())
        # Lightning shows the setting in question as name=value, and can mention others.
        patterns = (r"The {} `", r"(?<![\w.]){}=", r"(?<![\w.]){}\b")
        named = next((name for form in patterns for name in settings if re.search(form.format(name), message)), None)
        if named is None and isinstance(error, ImportError):
            named = next((name for name in _NEED_LIBRARIES if settings.get(name) not in (None, "auto")), None)
        if "No supported gpu backend" in message:
            raise ValueError(
                f"trainer.accelerator is {settings['accelerator']}, but torch finds no GPU: set it to cpu, or check the "
                "driver with nvidia-smi"
            ) from error
        if message.startswith("trainer.") or named is None:
            raise
        raise ValueError(f"trainer.{named} is {settings[named]}, which Lightning refuses: {message}") from error


def _check_rounds(most: int, least: int | None) -> None:
    check_range("trainer.max_steps", most, at_least=1, below=2**31, hint="the number of rounds")
    if least is not None:
        check_range("trainer.min_steps", least, at_least=0, at_most=most, hint="trainer.max_steps is the most")


def _check_cadence(interval: Any) -> None:
    """Lightning also takes a fraction of an epoch, which rounds do not have."""
    rounds = isinstance(interval, int) and not isinstance(interval, bool) and interval >= 1
    if not rounds and not isinstance(interval, timedelta) and not re.fullmatch(_TIME, str(interval)):
        raise ValueError(
            f"trainer.val_check_interval is {interval}, must be a whole number of rounds, at least 1, or a time, 00:00:30:00"
        )


def check_trainer(trainer: Trainer) -> None:
    """Check a trainer before a fit or an evaluation."""
    refuse_float16(trainer.precision)
    if trainer.state.fn != "fit":
        return
    refuse_other_strategies(trainer)
    for name, (neutral, cure) in _NOT_OF_ROUNDS.items():
        allowed = map(repr, (*neutral, *_set_by_lightning(trainer, name)))  # 1 batch is not 1.0, all of them
        if repr(value := getattr(trainer, name)) not in allowed:
            given = getattr(value, "value", value)  # of an enumeration
            raise ValueError(f"trainer.{name} is {given}, but a training step is a round: {cure}")
    limit = trainer.limit_val_batches  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(limit, float) and limit not in (0.0, 1.0):
        raise ValueError(f"trainer.limit_val_batches is {limit}, must be 1.0 for all or a whole number of batches: give one")
    if isinstance(limit, int) and limit > 0 and not trainer.fast_dev_run:  # pyright: ignore[reportAttributeAccessIssue]
        warnings.warn(
            f"trainer.limit_val_batches is {limit}, which holds for the test set in a fit too: its accuracies are of a part",
            stacklevel=1,
        )
    profiler = trainer.profiler  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(profiler, PyTorchProfiler) and profiler._record_module_names:
        raise ValueError(
            "trainer.profiler is PyTorchProfiler with hooks on the net, which cannot be copied for clients: give "
            "PyTorchProfiler(record_module_names=False), or simple"
        )
    for callback in callbacks_of(trainer):
        if cure := next((cure for kind, cure in _CALLBACKS_NOT_OF_ROUNDS.items() if isinstance(callback, kind)), None):
            trainer.callbacks.remove(callback)  # pyright: ignore[reportAttributeAccessIssue]  # else it would act on this error
            raise ValueError(
                f"trainer.callbacks has {type(callback).__name__}, but a training step is a round, and a fit one epoch: {cure}"
            )
        if isinstance(callback, ModelCheckpoint) and getattr(callback, "save_on_exception", False):
            raise ValueError(
                "trainer.callbacks has ModelCheckpoint with save_on_exception, which saves in the middle of a round: leave it "
                "out, and resume from last.ckpt"
            )
    if any(isinstance(callback, EarlyStopping) and _checks_at_end(callback, trainer) for callback in callbacks_of(trainer)):
        raise ValueError(
            "trainer.callbacks has EarlyStopping, which would check at ends of epochs, but a fit is one epoch: give it "
            "check_on_train_epoch_end=False"
        )
    _check_rounds(trainer.max_steps, trainer.min_steps)
    if getattr(trainer, "val_check_interval", None) == 0:  # a time is kept elsewhere
        _check_cadence(0)
    if getattr(trainer._accelerator_connector, "_layer_sync", None) is not None:  # the strategy of one process has none
        raise ValueError("trainer.sync_batchnorm is True, which would mix the clients of different processes: leave it out")


def _checks_at_end(callback: EarlyStopping, trainer: Trainer) -> bool:
    """Whether it checks only as the fit ends: by its argument, or as its ``setup`` will choose."""
    if callback._check_on_train_epoch_end is not None:
        return callback._check_on_train_epoch_end
    return getattr(trainer, "val_check_interval", None) == trainer.check_val_every_n_epoch == 1  # a time is kept elsewhere


def _set_by_lightning(trainer: Trainer, name: str) -> Collection[object]:
    """Values that Lightning itself sets if a setting is left out."""
    if trainer.fast_dev_run:  # pyright: ignore[reportAttributeAccessIssue]
        return {"max_epochs": (1,), "limit_train_batches": (trainer.max_steps,)}.get(name, ())
    at_fit = {"max_epochs": (1000,) if trainer.max_steps == -1 else (), "min_epochs": () if trainer.min_steps is None else (1,)}
    return at_fit.get(name, ())


def refuse_other_strategies(trainer: Trainer) -> None:
    """Check the settings of several processes, before they start if possible."""
    num_processes = trainer.num_devices * trainer.num_nodes
    if num_processes != num_started() > 1:
        raise ValueError(
            f"trainer.devices is {trainer.num_devices} and trainer.num_nodes is {trainer.num_nodes}, but torchrun started "
            f"{num_started()} processes: set trainer.devices to those of one node, or leave both out"
        )
    if not isinstance(trainer.strategy, FederatedStrategy if num_processes > 1 else FederatedStrategy | SingleDeviceStrategy):
        raise ValueError(
            f"trainer.strategy is {type(trainer.strategy).__name__}, under which processes share no cohort: set "
            "trainer.strategy to federated"
        )


def data_of(trainer: Trainer) -> FederatedDataModule:
    """A trainer's data module, an attribute that its class does not declare."""
    return trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]


def callbacks_of(trainer: Trainer) -> list[Callback]:
    """A trainer's callbacks, an attribute that its class does not declare."""
    return trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]


def averages_of(trainer: Trainer) -> list[WeightAveraging]:
    """Those of its callbacks that average weights over rounds: EMA or SWA of Lightning."""
    return [callback for callback in callbacks_of(trainer) if isinstance(callback, WeightAveraging)]


def keep_counts(average: WeightAveraging, module: LightningModule) -> None:
    """Give an average of weights the newest whole numbers of the net, and the newest state of the server."""
    averaged = average._average_model  # pyright: ignore[reportPrivateUsage]
    held = {} if averaged is None else dict(averaged.module.named_buffers())
    for name, newest in module.named_buffers():
        if name in held and not (name.startswith("net.") and newest.is_floating_point()):
            held[name].copy_(newest)


def refuse_float16(precision: str) -> None:
    """Refuse ``trainer.precision`` for float16: its gradients vanish without a scaler, which local steps do not have."""
    if "16" in precision and "bf" not in precision:
        raise ValueError(
            f"trainer.precision is {precision}, but local steps have no gradient scaler, which float16 needs: use bf16-mixed"
        )
