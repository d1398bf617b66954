"""What the tiny federations of task streams and of arriving classes have in common: their samples and their trainers."""

from collections.abc import Sequence
from pathlib import Path

import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from fl_lightning import FederatedStrategy
from fl_lightning.data import Arrays


def six_classes(unit: bool = False) -> Arrays:
    """150 training and 66 test samples of six classes, which the first pixel tells apart; with ``unit`` from 0 to 1."""
    generator = torch.Generator().manual_seed(5)
    targets = torch.arange(216) % 6
    inputs = torch.randn(216, 2, 3, 3, generator=generator, dtype=torch.float64)
    inputs[:, 0, 0, 0] += targets
    if unit:
        inputs = (inputs - inputs.min()) / (inputs.max() - inputs.min())
    return Arrays(inputs[:150], targets[:150], inputs[150:], targets[150:], classes=list("abcdef"))


def trainer_settings(callbacks: Sequence[Callback], checkpoints: Path | None, num_processes: int) -> dict[str, object]:
    """For runs in float64.

    Args:
        checkpoints: folder for one a round, ``step=1.ckpt`` and so on.
    """
    settings: dict[str, object] = {"precision": "64-true", "callbacks": list(callbacks)}
    if checkpoints is not None:
        keep_all = ModelCheckpoint(checkpoints, filename="{step}", every_n_train_steps=1, save_top_k=-1)
        settings |= {"enable_checkpointing": True, "callbacks": [*callbacks, keep_all]}
    if num_processes > 1:
        settings |= {"strategy": FederatedStrategy(start_method="fork"), "devices": num_processes}
    return settings
