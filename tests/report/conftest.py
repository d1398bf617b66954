"""Runs with known curves: a record and a config as a run leaves them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from matplotlib.figure import Figure
from recorded import RecordWriter

from fl_lightning.report.runs import read_runs
from fl_lightning.report.study import build_study


@pytest.fixture
def write_run(tmp_path) -> Callable[..., Path]:
    """Write a run below the test's folder; ``accuracy`` by round, ``changes`` to the config by dotted key."""

    def write(
        name: str,
        accuracy: dict[int, float],
        *,
        seed: int = 0,
        rounds: int | None = None,
        metric: str = "test/accuracy",
        scalars: dict[str, dict[int, float]] | None = None,
        results: dict | None = None,
        seconds_a_round: float = 2.0,
        start: float = 1.7e9,
        **changes,
    ) -> Path:
        folder = tmp_path / "runs" / f"seed_{seed}" / name / "version_0"
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(config(seed, rounds or max(accuracy, default=1), changes)))
        if results is not None:
            (folder / "results.json").write_text(json.dumps(results))
        with RecordWriter(folder) as writer:
            for key, curve in {metric: accuracy, **(scalars or {})}.items():
                for round, value in curve.items():
                    writer.add_scalar(key, value, round, start + round * seconds_a_round)
        return folder

    return write


def config(seed: int, rounds: int, changes: dict) -> dict:
    """A short config; ``model__optimizer__lr=0.3`` changes a value, ``model="FedProx"`` and the like a class."""
    changes = {"model": "FedAvg", "model__loss": "CrossEntropy", "model__optimizer__lr": 0.1, **changes}
    model = {
        "class_path": f"fl_lightning.{changes.pop('model')}",
        "init_args": {
            "net": {"class_path": "fl_lightning.models.MLP", "init_args": {"hidden": 8}},
            "loss": {"class_path": f"fl_lightning.losses.{changes.pop('model__loss')}"},
            "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": changes.pop("model__optimizer__lr")}},
            "local_steps": changes.pop("model__local_steps", 3),
            "engine": "auto",
        },
    }
    model["init_args"] |= {key.removeprefix("model__"): changes.pop(key) for key in list(changes) if key.startswith("model__")}
    alpha = changes.pop("data__partition__alpha", 0.1)
    data = {
        "source": changes.pop("data__source", "digits"),
        "root": changes.pop("data__root", "data"),
        "num_clients": 20,
        "clients_per_round": changes.pop("data__clients_per_round", 5),
        "partition": {"class_path": "fl_lightning.data.Dirichlet", "init_args": {"alpha": alpha}},
    }
    if "data__tasks" in changes:
        data["tasks"] = {"class_path": f"fl_lightning.tasks.{changes.pop('data__tasks')}", "init_args": {"num_tasks": 2}}
    targets = changes.pop("targets", [])
    limits = {key.removeprefix("trainer__"): changes.pop(key) for key in list(changes) if key.startswith("trainer__limit_")}
    trainer_callbacks = [{"class_path": path, "init_args": {"decay": 0.9}} for path in changes.pop("trainer__callbacks", [])]
    assert not changes, changes
    return {
        "seed_everything": seed,
        "trainer": {
            "max_steps": rounds,
            "devices": "auto",
            "default_root_dir": f"runs/seed_{seed}",
            "callbacks": trainer_callbacks,
            **limits,
        },
        "model": model,
        "data": data,
        "callbacks": {"summary": {"targets": targets}},
        "ckpt_path": None,
    }


@pytest.fixture
def no_pictures(monkeypatch) -> None:
    """Files of figures are empty: drawing takes most of the time of a report."""

    def empty(figure: Figure, path: Path, **settings: object) -> None:
        path.write_text("<svg></svg>")

    monkeypatch.setattr(Figure, "savefig", empty)


@pytest.fixture
def study(tmp_path) -> Callable:
    """The study of all runs written so far."""

    def build(baseline: str | None = None, target: float | None = None):
        runs, _ = read_runs([tmp_path / "runs"])
        return build_study(runs, baseline, target)[0]

    return build
