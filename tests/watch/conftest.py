"""Small runs as a fit writes them, finished or going on."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from recorded import RecordWriter


@pytest.fixture
def write_run(tmp_path) -> Callable[..., Path]:
    """Write a run below ``runs``: scalars and tensors by tag and round, a line each two seconds from ``start`` on."""

    def write(name: str, scalars: dict, tensors: dict | None = None, *, rounds: int, start: float = 1.7e9) -> Path:
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        config = {
            "seed_everything": 5,
            "trainer": {"max_steps": rounds},
            "model": {"class_path": "fl_lightning.FedAvg", "init_args": {"loss": "fl_lightning.losses.CrossEntropy"}},
            "data": {"source": "digits"},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        with RecordWriter(folder) as writer:
            for tag, curve in scalars.items():
                for round, value in curve.items():
                    writer.add_scalar(tag, value, round, start + 2 * round)
            for tag, values in (tensors or {}).items():
                for round, value in values.items():
                    writer.add_tensor(tag, value, round, start + 2 * round)
        return folder

    return write
