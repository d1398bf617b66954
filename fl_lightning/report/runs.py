"""Runs: found in folders, each with its config, its results and its log."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.report.log import Log, read_log
from fl_lightning.report.safe_text import shortened
from fl_lightning.run.record_lines import RECORD_FILE, SETTINGS_FILE
from fl_lightning.state.strict_yaml import load_yaml

_EVALUATIONS = ("tasks/accuracy", "test/accuracy", "val/accuracy")
_MOST_BYTES = 2**24  # of a config or results; JSON takes 25 times as much memory


@dataclass(frozen=True, eq=False)
class Run:
    """One folder ``version_N``."""

    folder: Path
    config: dict[str, Any]  # flat, see `flatten`; of a run from Python its settings
    results: dict[str, Any]  # results.json, empty where there is none
    log: Log

    @property
    def seed(self) -> int:
        """``seed_everything``; 0 where the config does not have it."""
        return int(self.config.get("seed_everything", 0))

    @property
    def finished(self) -> bool:
        """It evaluated its model in round ``trainer.max_steps``, or ended by itself before and wrote its results."""
        last, rounds = self.log.last_round, self.config.get("trainer.max_steps", 0)
        ended = (
            self.results.get("rounds") == last and self.results.get("max_steps", rounds) == rounds
        )  # otherwise the run is being extended
        return ended or (last >= rounds and not 0 < self.last_evaluated < rounds)

    @property
    def last_evaluated(self) -> int:
        """The last round with an accuracy, 0 if there is none. They are among the last values that a round logs."""
        logged = (self.log.scalars.get(name) for name in _EVALUATIONS)
        return int(max((of.rounds[-1] for of in logged if of is not None), default=0))


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """All runs in some folders at any depth, and remarks, one line each, on what was skipped or read in part.

    Raises:
        FileNotFoundError: if a folder does not exist, or none of them holds a run that can be read.
    """
    runs: list[Run] = []
    folders, remarks = run_folders(paths)
    for folder in folders:
        try:
            run = read_run(folder)
        except (ValueError, OSError, RecursionError) as error:
            remarks.append(f"{folder}: skipped, {reason(error)}")
        else:
            runs.append(run)
            remarks += run.log.remarks
    if not runs:
        where = ", ".join(map(str, paths))
        raise FileNotFoundError(
            f"RUNS is {where}, which has no run: give folders with {RECORD_FILE} and config.yaml or {SETTINGS_FILE}"
            + "".join(f" ({remark})" for remark in remarks[:3])
        )
    return runs, remarks


def reason(error: Exception) -> str:
    """Why `read_run` failed, without the folder, which the caller names."""
    if isinstance(error, RecursionError):
        return f"its results.json or {SETTINGS_FILE} is too deep"
    if isinstance(error, OSError) and error.filename:
        return f"{Path(error.filename).name} cannot be read ({error.strerror})"
    return str(error)


def run_folders(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Folders with a record or with a run's settings, each once, and remarks on folders that cannot be listed.

    Raises:
        FileNotFoundError: if one of the paths is not a folder.
    """
    found, remarks = {}, []

    def skip(error: OSError) -> None:
        remarks.append(f"{error.filename}: skipped, it cannot be listed ({error.strerror})")

    for path in paths:
        if not path.is_dir():
            raise FileNotFoundError(f"RUNS has {path}, which is not a folder: give folders of runs, such as runs/digits_tce")
        for folder, inner, files in os.walk(path, onerror=skip):
            inner[:] = sorted(name for name in inner if name != "checkpoints")  # which may hold a file for each client
            of_sweep = Path(folder).name == "config" and (Path(folder).parent / "study.db").exists()
            if {"config.yaml", SETTINGS_FILE, RECORD_FILE} & set(files) and not of_sweep:
                found.setdefault(Path(folder).resolve(), Path(folder))
    return list(found.values()), remarks


def read_run(folder: Path) -> Run:
    """The run of a folder, its log as far as it is whole.

    Raises:
        ValueError, OSError, RecursionError: saying why the folder is not a run.
    """
    files = (folder / name for name in ("config.yaml", SETTINGS_FILE))
    path = next((file for file in files if file.exists()), None)
    if path is None:
        raise ValueError(f"it has neither config.yaml nor {SETTINGS_FILE}")
    if not (folder / RECORD_FILE).exists():
        raise ValueError(f"it has no {RECORD_FILE}")
    config, results = _read_config(path), _read_results(folder / "results.json")
    log = read_log(folder)
    if log.remarks and not log.sessions:
        raise ValueError(f"nothing in its {RECORD_FILE} can be read")
    return Run(folder, config, results, log)


def _read_config(path: Path) -> dict[str, Any]:
    """The flat config of a run; what a report computes with is of the type that it computes with."""
    data, read = _bytes(path), load_yaml if path.suffix == ".yaml" else json.loads
    try:
        config = read(data.decode("utf-8"))
    except (yaml.YAMLError, json.JSONDecodeError, UnicodeDecodeError):
        config = None
    except ValueError as error:
        raise ValueError(f"its {path.name} is not that of a run: {shortened(str(error), 200)}") from error
    if not isinstance(config, dict) or not ({"model", "data"} <= config.keys() or path.name == SETTINGS_FILE):
        raise ValueError(f"its {path.name} is not that of a run")
    flat = dict(flatten(config))
    for key, (fits, kind) in _EXPECTED.items():
        if key in flat and not fits(flat[key]):
            raise ValueError(f"its {path.name} has {key} {shortened(str(flat[key]))}, which is not a {kind}")
    if isinstance(flat.get("data.clients_per_round"), float):  # in Python 1.0, all clients, equals 1, one of them
        flat["data.clients_per_round"] = str(flat["data.clients_per_round"])
    if missing := [key for key in ("model", "data.source") if key not in flat]:
        raise ValueError(f"its {path.name} has no {missing[0]}")
    return flat


def _read_results(path: Path) -> dict[str, Any]:
    """Nothing of a run that has not ended."""
    if not path.exists():
        return {}
    data = _bytes(path)
    try:
        results = json.loads(data)
    except ValueError:
        results = None
    if not isinstance(results, dict) or type(results.get("rounds")) is not int:
        raise ValueError("its results.json is not that of a run")
    for key in ("model_megabytes", "bytes_down", "bytes_up"):
        if not is_number(size := results.get(key, 0)):
            raise ValueError(f"its results.json has {key} {shortened(str(size))}, which is not a number")
    return results


def _bytes(path: Path) -> bytes:
    if not path.is_file():  # a pipe would be waited for
        raise ValueError(f"its {path.name} is not a file")
    if (size := path.stat().st_size) > _MOST_BYTES:
        raise ValueError(f"its {path.name} has {size:,} bytes, must have at most {_MOST_BYTES:,}")
    return path.read_bytes()


def is_number(value: Any) -> bool:
    """Whether ``value`` is a finite number that a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def flatten(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """A config as ``model.optimizer.lr: 0.1``; an object's class is under the object's key, ``model.optimizer``.

    What is null or empty is left out, so that a key that older runs lack equals one that is not set.

    Raises:
        ValueError: if the arguments of a class are not a mapping.
    """
    if isinstance(value, dict):
        if "class_path" in value:
            yield key, _hashable(value["class_path"])
            value = value.get("init_args") or {}
            if not isinstance(value, dict):
                raise ValueError(f"its config.yaml has {key}.init_args, which holds no keys")
        for name, part in value.items():
            yield from flatten(part, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
        for index, part in enumerate(value):
            yield from flatten(part, f"{key}.{index}")
    elif value is not None and value != []:
        yield key, _hashable(value)


def _hashable(value: Any) -> Any:
    """A value that can be compared and counted: lists as tuples, and what else YAML may hold, such as sets, as text."""
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return value if isinstance(value, str | int | float) or value is None else str(value)


# Keys that a report computes with: what they must be, and its name.
_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model": (lambda value: isinstance(value, str), "class"),
    "seed_everything": (lambda value: is_number(value) and value == int(value), "whole number"),
    "trainer.max_steps": (is_number, "number"),
    "model.optimizer.lr": (is_number, "number"),
    "callbacks.summary.targets": (
        lambda value: isinstance(value, tuple) and all(map(is_number, value)),
        "list of numbers",
    ),
}
