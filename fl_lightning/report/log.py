"""What a run logged: its record, read in one pass and as far as it is whole."""

import re
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from fl_lightning.run.record_lines import MOST, RECORD_FILE, Line, record_lines

# Those that are kept, with their numbers of dimensions.
TENSORS = {
    "clients/round_cohort": (1,),
    "clients/cohort": (1,),
    "clients/accuracy_before": (1, 2),  # of one global model, or of each client's model
    "clients/accuracy_after": (2,),
    "clients/local_change": (2,),
    "clients/loss_increase": (2,),
    "clients/class_cohort": (1,),
    "clients/class_accuracy": (2,),
    "clients/personal_accuracy": (1,),
    "cka/clients": (2,),
    "cka/cohort": (1,),
    "drift/class": (2,),
    "drift/cohort": (1,),
    "drift/holds": (2,),
    "events/class": (1,),
    "events/counts": (1,),
    "forgetting/local": (2,),  # rows [right edge, count]
    "head/norm": (2,),
    "head/bias": (2,),
    "head/logit": (2,),
    "head/cohort": (1,),
    "head/holds": (2,),
    "label_counts/first_clients": (2,),
    "label_counts/clients": (2,),
    "tasks/table": (2,),
    "tasks/client_tables": (3,),
    "tasks/ahead": (1,),
    "tasks/class_table": (2,),
    "tasks/counts": (2,),
    "tasks/class_task": (1,),
    "tasks/class_rounds": (2,),
    "tasks/attention_of_client_K": (2,),
    "tasks/foreign_of_client_K": (2,),
}
_PAIRS = ("forgetting/local", "tasks/class_rounds", "tasks/foreign_of_client_")  # have two columns
_NUMBERED = re.compile(r"_[0-9]{1,9}\Z")  # the K of a tensor's name


@dataclass(frozen=True, eq=False)
class Curve:
    """A scalar over rounds."""

    rounds: NDArray[np.int64]  # (n,), ascending
    values: NDArray[np.float64]  # (n,)

    def __len__(self) -> int:
        return len(self.rounds)

    def after(self, round: int) -> "Curve":
        """Its later part, from ``round`` + 1 on."""
        return Curve(self.rounds[self.rounds > round], self.values[self.rounds > round])

    def at(self, rounds: NDArray[np.int64]) -> NDArray[np.float64]:
        """Values in some of its rounds."""
        return self.values[np.searchsorted(self.rounds, rounds)]

    def by_round(self) -> dict[int, float]:
        """Round -> value."""
        return dict(zip(self.rounds.tolist(), self.values.tolist(), strict=True))


def thinned(count: int, most: int) -> NDArray[np.int64]:
    """Indices of at most so many of ``count`` points, evenly spread, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)) if count else np.arange(0)


@dataclass(eq=False)
class Log:
    """What the record of one run holds. Where those of its processes overlap, the later one counts."""

    scalars: dict[str, Curve] = field(default_factory=dict)
    tensors: dict[str, dict[int, NDArray[np.float32]]] = field(default_factory=dict)  # name -> round -> as logged
    sessions: list[NDArray] = field(default_factory=list)  # one a process: (n, 2), round and time in s of its last line
    classes: list[str] = field(default_factory=list)  # names, in the order of labels, where the record has them
    remarks: list[str] = field(default_factory=list)  # on a file that is cut off or damaged
    is_damaged: bool = False  # the file holds what no run writes, and is not one that is being written

    def newest(self, name: str) -> float:
        """The newest value of a scalar; NaN if it was not logged."""
        return float(self.scalars[name].values[-1]) if name in self.scalars else float("nan")

    @property
    def last_round(self) -> int:
        """The last round in which anything was logged, 0 if there is none."""
        return int(max((session[:, 0].max() for session in self.sessions), default=0))

    @property
    def last_time(self) -> float:
        """When anything was last logged, in s since 1970."""
        return float(max((session[:, 1].max() for session in self.sessions), default=0))


def read_log(folder: Path, named: str = "") -> Log:
    """Read the record of a folder, as far as it is whole; a remark names the last round read of a damaged one.

    Args:
        named: text of names; lines without it are not decoded, as numbers behind figures take most of a record.
    """
    path, log = folder / RECORD_FILE, Log()
    points: dict[str, dict[int, float]] = {}  # name -> round -> value
    sessions: list[dict[int, float]] = []  # of each process, round -> time of its last line
    try:
        if not path.is_file():  # a pipe would be waited for
            raise OSError(f"{path} is not a file")
        with open(path, "rb") as file:
            for line in record_lines(_with_text(named, file) if named else file):
                _add(line, log, points, sessions)
    except (EOFError, OSError, ValueError) as error:
        rounds = [round for times in sessions for round in times]
        newest = f"read up to round {max(rounds)}" if rounds else "nothing could be read"
        said = "cannot be opened" if isinstance(error, OSError) else "cut off or damaged"
        log.remarks.append(f"{path}: {said}, {newest}")
        log.is_damaged = isinstance(error, ValueError)
    log.sessions = [np.array(list(times.items())) for times in sessions]
    log.scalars = {name: _curve(values) for name, values in points.items()}
    return log


def _with_text(text: str, file: BinaryIO) -> BinaryIO:
    return BytesIO(b"".join(line for line in file if text.encode() in line))


def _add(line: Line, log: Log, points: dict[str, dict[int, float]], sessions: list[dict[int, float]]) -> None:
    for name, value in line.scalars.items():
        points.setdefault(name, {})[line.round] = value
    log.classes = line.classes or log.classes
    for name, tensor in line.tensors.items():
        if (kind := _NUMBERED.sub("_K", name)) in TENSORS:
            _check(name, tensor, TENSORS[kind])
            log.tensors.setdefault(name, {})[line.round] = tensor
    if line.begins:
        sessions.append({})
    sessions[-1][line.round] = line.time


def _check(name: str, tensor: NDArray, dimensions: tuple[int, ...]) -> None:
    """Raises a ValueError if its shape or its values do not fit its name."""
    if tensor.ndim not in dimensions or tensor.shape[1:] == (0,) or (name.startswith(_PAIRS) and tensor.shape[1] != 2):
        raise ValueError(f"{name} has shape {tensor.shape}")
    if name.endswith("cohort") and not ((tensor == np.floor(tensor)) & (tensor >= 0) & (tensor < MOST)).all():
        raise ValueError(f"{name} holds something that is not a client")


def _curve(points: dict[int, float]) -> Curve:
    rounds, values = np.fromiter(points, np.int64), np.fromiter(points.values(), np.float64)
    order = np.argsort(rounds)
    return Curve(rounds[order], values[order])
