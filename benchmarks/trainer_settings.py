"""How our trainer is set: as the command line sets it, with or without what watches a run."""

from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger

from fl_lightning.callbacks import ClientForgetting, Communication, LabelCounts, PerClassAccuracy, RoundForgetting


def trainer_settings(analysis: bool, folder: str) -> dict[str, Any]:
    """Arguments of Lightning's trainer.

    Args:
        analysis: with the analysis callbacks at their default cadence, a TensorBoard logger, validation and test set.
        folder: where the logger writes.
    """
    common = {
        "max_epochs": -1,
        "check_val_every_n_epoch": None,
        "log_every_n_steps": 1,
        "num_sanity_val_steps": 0,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    if not analysis:
        return {**common, "logger": False, "limit_val_batches": 0, "callbacks": []}
    callbacks = [PerClassAccuracy(), ClientForgetting(), RoundForgetting(), LabelCounts(), Communication()]
    return {**common, "logger": TensorBoardLogger(folder), "val_check_interval": 10, "callbacks": callbacks}
