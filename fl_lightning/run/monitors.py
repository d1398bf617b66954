"""What EarlyStopping and ModelCheckpoint compare: each measurement of a callback once, at the evaluation that follows it."""

import warnings
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from fl_lightning.checks import did_you_mean
from fl_lightning.run.trainer_settings import callbacks_of, data_of


class Monitors(Callback):
    """Withdraws, at each evaluation, what callbacks measured in earlier rounds.

    Lightning compares the newest value, however old. ``EarlyStopping`` would count one measurement several times, and
    ``ModelCheckpoint`` would save a model under the value of an earlier one. Without a new value ``EarlyStopping`` waits, and
    ``ModelCheckpoint`` gets NaN, which is worse than any number. Values of every round, ``train/...``, are never withdrawn.
    """

    def __init__(self) -> None:
        self._compared: dict[str, int] = {}  # by name, the round of the measurement that EarlyStopping has seen

    def state_dict(self) -> dict[str, Any]:
        return {"compared": self._compared}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._compared = dict(state_dict["compared"])

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Show what the run measured before it was interrupted; checkpoints of Lightning's do not contain it."""
        rounds, newest = _measured(module)
        for name in monitored(trainer) & rounds.keys():
            if self._compared.get(name) != rounds[name]:
                trainer.callback_metrics[name] = torch.tensor(newest[name])

    def on_validation_start(self, trainer: Trainer, module: LightningModule) -> None:
        if trainer.state.fn != "fit":
            return
        rounds, _ = _measured(module)
        for name in monitored(trainer):
            if (name not in rounds and _is_nan(trainer, name)) or (name in rounds and self._compared.get(name) == rounds[name]):
                trainer.callback_metrics.pop(name, None)
            elif name in rounds:
                self._compared[name] = rounds[name]

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Before checkpoints are saved, and after EarlyStopping has compared."""
        if trainer.state.fn != "fit":
            return
        rounds, _ = _measured(module)
        for callback in callbacks_of(trainer):
            name = callback.monitor if isinstance(callback, ModelCheckpoint) else None
            if name is None or name.startswith("train/"):
                continue
            is_old = name in rounds and rounds[name] < trainer.global_step
            if is_old or (name.startswith("forgetting/") and name not in rounds):
                trainer.callback_metrics[name] = torch.tensor(torch.nan)

    def on_fit_end(self, trainer: Trainer, module: LightningModule) -> None:
        rounds, _ = _measured(module)
        for name in sorted(monitored(trainer) - rounds.keys()):
            if name not in trainer.callback_metrics or _is_nan(trainer, name):
                known = did_you_mean(name, rounds, otherwise=f"this run measured {', '.join(sorted(rounds))}")
                warnings.warn(f"trainer.callbacks has a monitor of {name}, which no round measured: {known}", stacklevel=1)


def check_monitors(trainer: Trainer) -> None:
    """Check that what is monitored will be there at every evaluation.

    Raises:
        ValueError: if evaluations lack it.
    """
    data = data_of(trainer)
    validates = data.has_validation and trainer.limit_val_batches != 0  # pyright: ignore[reportAttributeAccessIssue]
    if not validates and (names := sorted(name for name in monitored(trainer) if name.startswith("val/"))):
        raise ValueError(
            f"trainer.callbacks has a monitor of {names[0]}, but no round evaluates clients' validation parts: set "
            "data.val_fraction above 0, and leave out trainer.limit_val_batches"
        )
    for callback in callbacks_of(trainer):
        if isinstance(callback, EarlyStopping) and callback.strict and callback.monitor.startswith(("forgetting/", "train/")):
            raise ValueError(
                f"trainer.callbacks has EarlyStopping of {callback.monitor}, which the untrained model does not have: give it "
                "strict=False"
            )
    every = data.monitor_test
    interval = getattr(trainer, "val_check_interval", None) or 1  # a time is kept elsewhere
    if every == 0 or isinstance(interval, float) or interval % every == 0:  # 1.0 is after the last round
        return
    for callback in callbacks_of(trainer):
        monitor = callback.monitor if isinstance(callback, EarlyStopping | ModelCheckpoint) else None
        if monitor is not None and monitor.startswith("test/"):
            raise ValueError(
                f"trainer.callbacks has {type(callback).__name__} of {monitor}, but data.monitor_test is {every}, so that not "
                f"every evaluation has a test: set data.monitor_test to {interval}"
            )


def monitored(trainer: Trainer) -> set[str]:
    """Names of the scalars by which callbacks stop the fit or choose checkpoints."""
    return {one.monitor for one in callbacks_of(trainer) if isinstance(one, EarlyStopping | ModelCheckpoint) and one.monitor}


def _measured(module: LightningModule) -> tuple[dict[str, int], dict[str, float]]:
    """What callbacks and evaluations of a federation logged: by name, the round of the newest value, and the value."""
    rounds: dict[str, int] = module.newest_rounds  # pyright: ignore[reportAttributeAccessIssue, reportAssignmentType]
    return {name: round for name, round in rounds.items() if not name.startswith("train/")}, module.newest  # pyright: ignore


def _is_nan(trainer: Trainer, name: str) -> bool:
    return bool(torch.isnan(trainer.callback_metrics.get(name, torch.tensor(0.0))))
