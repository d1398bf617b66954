"""What watches a fit unless the user says otherwise: callbacks with keys on the command line, and checkpoints."""

from pathlib import Path

from jsonargparse import Namespace
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from fl_lightning.callbacks import (
    ArrivingClasses,
    ClientForgetting,
    Communication,
    FederatedCallback,
    LabelCounts,
    PerClassAccuracy,
    PersonalAccuracy,
    PrivacyBudget,
    RoundForgetting,
    RunSummary,
    TaskAccuracy,
    TaskAttention,
)
from fl_lightning.data import FederatedDataModule

CALLBACKS: dict[str, type[FederatedCallback]] = {
    callback.key: callback
    for callback in (
        PerClassAccuracy,
        ClientForgetting,
        RoundForgetting,
        LabelCounts,
        PersonalAccuracy,
        TaskAccuracy,
        ArrivingClasses,
        TaskAttention,
        Communication,
        PrivacyBudget,
        RunSummary,  # after the others: it reports what they logged
    )
}


def checkpoints(config: Namespace, data: FederatedDataModule, folder: Path) -> list[Callback]:
    """The newest state at every evaluation, and the best by validation accuracy where there is validation data."""
    common = {"dirpath": folder, "enable_version_counter": False}
    tasks = data.tasks
    if config.limit_val_batches == 0 or (tasks is not None and not tasks.global_model):
        # No evaluation to wait for: every so many rounds, and at the end.
        every = ModelCheckpoint(filename="last", every_n_train_steps=config.val_check_interval, **common)
        return [every, ModelCheckpoint(filename="last", save_on_train_epoch_end=True, **common)]
    best = ModelCheckpoint(filename="best", monitor="val/accuracy", mode="max", **common)
    # Where classes arrive, the model of the first task would be the best.
    has_best = data.has_validation and tasks is None
    return [*([best] if has_best else []), ModelCheckpoint(filename="last", **common)]
