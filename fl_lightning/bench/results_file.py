"""Results files of forgetbench: one JSON file for a method on a federation, checked against its digests when it is read."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fl_lightning.bench.federation import check_options, digest_of, federation
from fl_lightning.state.atomic_files import atomic_write

_FORMAT = "fl-lightning forgetbench 1"


@dataclass(frozen=True)
class CellRun:
    """One run of a cell: a seed."""

    partition: str  # digests of its data, see `data_digests`
    samples: str
    numbers: Mapping[str, float]  # of `run_scalars`, and processor_seconds


@dataclass(frozen=True)
class Cell:
    """A method on a federation."""

    federation: str  # its name
    method: str  # its class, as it was typed
    options: Sequence[str]  # for each fit, as they were typed: of the method, its loss and its rates
    version: str  # of the package
    commit: str  # of the package; empty if it is not known
    code: str  # digest of the file that defines the method
    initial_weights: str  # digest of the weights that all runs begin with; empty where these are drawn by the seed
    runs: Mapping[int, CellRun]  # by seed

    @property
    def label(self) -> str:
        """Class and options: ``FedProx --model.mu 0.1``."""
        return " ".join([self.method.rpartition(".")[2], *self.options])


def write_cell(cell: Cell, path: Path) -> None:
    """Write a results file, completely or not at all."""
    content: dict[str, Any] = {"format": _FORMAT, "protocol": federation(cell.federation).digest, **asdict(cell)}
    content["runs"] = {str(seed): run for seed, run in sorted(content["runs"].items())}
    with atomic_write(path) as temporary:
        text = json.dumps({**content, "digest": digest_of(content)}, indent=1, sort_keys=True)
        temporary.write_text(f"{text}\n", encoding="utf-8")


def read_cell(path: Path) -> Cell:
    """Read a results file and check it.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: naming the file, if it is not as it was written, of another protocol or of other data, or if an option
            changes what is fixed.
    """
    if not path.is_file():
        raise FileNotFoundError(f"--table has {path}, which is not a file: give results files of fl-lightning bench")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found, digest = content.pop("format"), content.pop("digest")
        is_whole = digest == digest_of({"format": found, **content})
        protocol, runs = content.pop("protocol"), content.pop("runs")
        cell = Cell(**content, runs={int(seed): CellRun(**run) for seed, run in runs.items()})
        is_whole = is_whole and all(math.isfinite(number) for run in cell.runs.values() for number in run.numbers.values())
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a results file of forgetbench: give those of fl-lightning bench") from error
    if found != _FORMAT or not is_whole:
        raise ValueError(f"{path} is not as it was written: its digest is of other contents: run the cell again")
    _check_protocol(cell, protocol, path)
    return cell


def _check_protocol(cell: Cell, protocol: str, path: Path) -> None:
    try:
        of = federation(cell.federation)
        check_options(cell.options)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if protocol != of.digest:
        raise ValueError(f"{path} is of another version of the federation {of.name}: run the cell again")
    for seed, run in cell.runs.items():
        if of.partitions.get(seed) != run.partition:
            raise ValueError(f"{path} has seed {seed} with another partition than that of {of.name}: run the cell again")
