"""Small runs as a fit writes them, finished or going on."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from torch.utils.tensorboard import SummaryWriter

from fl_lightning.training.record_logger import RecordLogger


@pytest.fixture
def write_run(tmp_path) -> Callable[..., Path]:
    """Write a run below ``runs``: scalars and tensors by tag and round, an event each two seconds from ``start`` on.

    With ``recorded`` there is ``record.jsonl`` and no event file, as with another logger than TensorBoard's; all times are now.
    """

    def write(
        name: str, scalars: dict, tensors: dict | None = None, *, rounds: int, start: float = 1.7e9, recorded: bool = False
    ) -> Path:
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        config = {
            "seed_everything": 5,
            "trainer": {"max_steps": rounds},
            "model": {"class_path": "fl_lightning.FedAvg", "init_args": {"loss": "fl_lightning.losses.CrossEntropy"}},
            "data": {"source": "digits"},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        if recorded:
            _record(RecordLogger(folder), scalars, tensors or {})
            return folder
        with SummaryWriter(folder) as writer:
            for tag, curve in scalars.items():
                for round, value in curve.items():
                    writer.add_scalar(tag, value, round, start + 2 * round)
            for tag, values in (tensors or {}).items():
                for round, value in values.items():
                    writer.add_tensor(tag, torch.tensor(value, dtype=torch.float32), round, start + 2 * round)
        return folder

    return write


def _record(logger: RecordLogger, scalars: dict, tensors: dict) -> None:
    for tag, curve in scalars.items():
        for round, value in curve.items():
            logger.log_metrics({tag: value}, round)
    for tag, values in tensors.items():
        for round, value in values.items():
            logger.log_tensors({tag: torch.tensor(value, dtype=torch.float32)}, round)
