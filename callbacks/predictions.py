"""PredictionWriter: what `predict` leaves on disk."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import BasePredictionWriter

from fl_lightning.module import FederatedModule
from fl_lightning.processes.process_group import ProcessGroup
from fl_lightning.state.atomic_files import atomic_write


class PredictionWriter(BasePredictionWriter):
    """Writes the test set's predictions to a CSV file: ``index,label,prediction,probability``.

    With arriving classes the index counts the test samples of the classes seen so far.

    Args:
        path: the file; replaced if it exists.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(write_interval="epoch")
        self.path = path

    def write_on_epoch_end(
        self, trainer: Trainer, module: FederatedModule, predictions: Sequence[Any], batch_indices: Sequence[Any]
    ) -> None:
        """Gather the batches of all processes, which took turns, and write them in the order of the test set."""
        parts = ProcessGroup.of(trainer).gather({str(turn): batch.cpu() for turn, batch in enumerate(predictions)})
        by_rank = [list(part.values()) for part in parts]
        if not trainer.is_global_zero:
            return
        in_order = [rank[turn] for turn in range(max(map(len, by_rank))) for rank in by_rank if turn < len(rank)]
        probability, prediction = torch.cat(in_order).float().max(dim=-1)
        classes, targets = module.data.classes, module.data.evaluation.test_targets().tolist()
        with atomic_write(self.path) as path, open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["index", "label", "prediction", "probability"])
            # Not strict: trainer.limit_predict_batches leaves out the last ones.
            for index, (label, guess) in enumerate(zip(targets, prediction.tolist(), strict=False)):
                writer.writerow([index, classes[label], classes[guess], f"{probability[index]:.6f}"])
