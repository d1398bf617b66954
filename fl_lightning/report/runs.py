"""Runs: found in folders, each with its config, its results and its log."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.report.events import EVENT_FILES, Log, read_log


@dataclass(frozen=True, eq=False)
class Run:
    """One folder ``version_N``."""

    folder: Path
    config: dict[str, Any]  # flat, see `flatten`
    results: dict[str, Any]  # results.json, empty where there is none
    log: Log

    @property
    def seed(self) -> int:
        return int(self.config.get("seed_everything", 0))

    @property
    def finished(self) -> bool:
        """It came to ``trainer.max_steps``, or ended by itself before and wrote its results."""
        last = self.log.last_round
        return last >= self.config.get("trainer.max_steps", 0) or self.results.get("rounds") == last


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """All runs in some folders at any depth, and remarks on what was skipped or read in part.

    Raises:
        FileNotFoundError: if a folder does not exist, or none of them holds a run.
    """
    runs, remarks = [], []
    for folder in _run_folders(paths):
        try:
            run = _read_run(folder)
        except ValueError as error:
            remarks.append(f"{folder}: skipped, {error}")
        else:
            runs.append(run)
            remarks += run.log.remarks
    if not runs:
        where = ", ".join(map(str, paths))
        raise FileNotFoundError(
            f"RUNS is {where}, which holds no run: give folders of fl-lightning fit, with {EVENT_FILES} and config.yaml"
            + "".join(f" ({remark})" for remark in remarks[:3])
        )
    return runs, remarks


def _run_folders(paths: Sequence[Path]) -> list[Path]:
    """Folders with an event file or with a run's config, each once."""
    found = {}
    for path in paths:
        if not path.is_dir():
            raise FileNotFoundError(f"RUNS has {path}, which is no folder: give folders of runs, such as runs/digits_tce")
        for folder, inner, files in os.walk(path):
            inner[:] = sorted(name for name in inner if name != "checkpoints")  # which may hold a file for each client
            if "config.yaml" in files or any(Path(name).match(EVENT_FILES) for name in files):
                found.setdefault(Path(folder).resolve(), Path(folder))
    return list(found.values())


def _read_run(folder: Path) -> Run:
    """Raises a ValueError that says why the folder is no run."""
    if not (folder / "config.yaml").exists():
        raise ValueError("it has no config.yaml")
    if not any(folder.glob(EVENT_FILES)):
        raise ValueError(f"it has no {EVENT_FILES}")
    try:
        config = yaml.load((folder / "config.yaml").read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        config = None
    if not isinstance(config, dict) or not {"model", "data"} <= config.keys():
        raise ValueError("its config.yaml is not that of a run")
    try:
        results = json.loads((folder / "results.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        results = {}
    return Run(folder, dict(flatten(config)), results, read_log(folder))


def flatten(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """A config as ``model.optimizer.lr: 0.1``; an object's class stands under its own key, ``model.optimizer``.

    What is null or empty is left out, so that a key which older runs lack says the same as one that is not set.
    """
    if isinstance(value, dict):
        if "class_path" in value:
            yield key, value["class_path"]
            value = value.get("init_args") or {}
        for name, part in value.items():
            yield from flatten(part, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
        for place, part in enumerate(value):
            yield from flatten(part, f"{key}.{place}")
    elif value is not None and value != []:
        yield key, _hashable(value)


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
