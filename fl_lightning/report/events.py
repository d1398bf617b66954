"""What a run logged: TensorBoard's event files and our record, read in one pass and as far as they are whole.

TensorBoard's ``EventAccumulator`` verifies checksums in Python. Here they are not: a record that is cut off, empty or no
event ends its file.
"""

import math
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.types_pb2 import DT_FLOAT  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.util.tensor_util import make_ndarray

from fl_lightning.training.record_lines import record_lines
from fl_lightning.training.record_logger import RECORD_FILE

EVENT_FILES = "events.out.tfevents.*"
_HEADER = struct.Struct("<Q4x")  # length of the event, checksum of the length
_FOOTER = 4  # bytes of the event's checksum
# Those that are kept, with their numbers of dimensions.
TENSORS = {
    "clients/round_cohort": (1,),
    "clients/cohort": (1,),
    "clients/accuracy_before": (1, 2),  # of one global model, or of each client's model
    "clients/accuracy_after": (2,),
    "clients/class_cohort": (1,),
    "clients/class_accuracy": (2,),
    "clients/personal_accuracy": (1,),
    "label_counts/first_clients": (2,),
    "label_counts/clients": (2,),
    "tasks/table": (2,),
    "tasks/class_table": (2,),
    "tasks/counts": (2,),
    "tasks/class_task": (1,),
    "tasks/class_rounds": (2,),
    "tasks/attention_of_client_K": (2,),
    "tasks/foreign_of_client_K": (2,),
}
_NUMBERED = re.compile(r"_\d+$")  # the K of a tensor's name


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


@dataclass(eq=False)
class Log:
    """What the files of one folder hold. Where those of a resumed run overlap, the later one counts."""

    scalars: dict[str, Curve] = field(default_factory=dict)
    histograms: dict[str, dict[int, NDArray]] = field(default_factory=dict)  # name -> round -> (n, 2): right edge, count
    tensors: dict[str, dict[int, NDArray]] = field(default_factory=dict)  # name -> round -> as logged
    sessions: list[NDArray] = field(default_factory=list)  # one a process: (n, 2), round and time in s of its last event
    remarks: list[str] = field(default_factory=list)  # on damaged files

    @property
    def last_round(self) -> int:
        """The last round in which anything was logged, 0 if there is none."""
        return int(max((session[:, 0].max() for session in self.sessions), default=0))

    @property
    def last_time(self) -> float:
        """When anything was last logged, in s since 1970."""
        return float(max((session[:, 1].max() for session in self.sessions), default=0))


def has_log(folder: Path) -> bool:
    """Whether a folder holds a file that :func:`read_log` reads."""
    return (folder / RECORD_FILE).exists() or any(folder.glob(EVENT_FILES))


def read_log(folder: Path) -> Log:
    """Read the event files of a folder, the oldest first, and after them its record, each as far as it is whole."""
    log, points = Log(), {}
    for path in sorted(folder.glob(EVENT_FILES), key=_age):
        _read(path, _add_events, log, points)
    if (folder / RECORD_FILE).exists():
        _read(folder / RECORD_FILE, _add_lines, log, points)
    log.scalars = {name: _curve(values) for name, values in points.items()}
    return log


Points = dict[str, dict[int, float]]  # name -> round -> value
Sessions = list[dict[int, float]]  # of each process, round -> time of its last event


def _read(path: Path, add: Callable[[bytes, Log, Points, Sessions], None], log: Log, points: Points) -> None:
    """Add what a file holds; a remark says how far a damaged one was read."""
    sessions: Sessions = [{}]
    try:
        add(_bytes(path), log, points, sessions)
    except (EOFError, OSError, DecodeError, ValueError) as error:
        rounds = [round for times in sessions for round in times]
        newest = f"read up to round {max(rounds)}" if rounds else "nothing could be read"
        said = "cannot be opened" if isinstance(error, OSError) else "cut off or damaged"
        log.remarks.append(f"{path}: {said}, {newest}")
    log.sessions += [np.array(list(times.items())) for times in sessions if times]


def _add_events(data: bytes, log: Log, points: Points, sessions: Sessions) -> None:
    for event in _events(data):
        for value in event.summary.value:
            if value.HasField("simple_value"):
                points.setdefault(value.tag, {})[event.step] = value.simple_value
            else:
                _add_value(log, event.step, value)
            sessions[-1][event.step] = event.wall_time


def _add_lines(data: bytes, log: Log, points: Points, sessions: Sessions) -> None:
    for line in record_lines(data):
        if line.begins:
            sessions.append({})
        for name, value in line.scalars.items():
            points.setdefault(name, {})[line.round] = value
        for name, buckets in line.histograms.items():
            log.histograms.setdefault(name, {})[line.round] = buckets
        for name, tensor in line.tensors.items():
            if _kind(name) in TENSORS:
                _keep(log, line.round, name, tensor)
        sessions[-1][line.round] = line.time


def _age(path: Path) -> tuple[int, str]:
    """Sorts by the time in the name; a name without one comes first."""
    time = path.name.split(".")[3]
    return int(time) if time.isdecimal() else 0, path.name


def _bytes(path: Path) -> bytes:
    if not path.is_file():  # a pipe would be waited for
        raise OSError(f"{path} is no file")
    return path.read_bytes()


def _events(data: bytes) -> Iterator[Event]:
    """Decode the records of a file: length, checksum, event, checksum.

    Raises:
        EOFError, DecodeError, ValueError: at a record that is not whole, or has no time.
    """
    position = 0
    while position < len(data):
        start = position + _HEADER.size
        (length,) = _HEADER.unpack_from(data, position) if start <= len(data) else (0,)
        position = start + length + _FOOTER
        if length == 0 or position > len(data):  # a disk that lost power may have left zeros
            raise EOFError
        event = Event.FromString(data[start : start + length])
        if not math.isfinite(event.wall_time):
            raise ValueError("an event has no time")
        yield event


def _add_value(log: Log, round: int, value: Summary.Value) -> None:
    """Keep a histogram or a tensor. Raises a ValueError if its parts do not fit."""
    if value.HasField("histo"):
        buckets = np.stack([value.histo.bucket_limit, value.histo.bucket], axis=1)
        log.histograms.setdefault(value.tag, {})[round] = buckets
    elif _kind(value.tag) in TENSORS:
        # Fewer bytes than numbers would be one number repeated, as often as the shape says.
        shape = [dimension.size for dimension in value.tensor.tensor_shape.dim]
        if math.prod(shape) > value.ByteSize() or value.tensor.dtype != DT_FLOAT:
            raise ValueError(f"{value.tag} has shape {shape}")
        tensor = make_ndarray(value.tensor)
        _keep(log, round, value.tag, tensor)


def _kind(name: str) -> str:
    """The name of a tensor in :data:`TENSORS`, which names those of all clients once."""
    return _NUMBERED.sub("_K", name)


def _keep(log: Log, round: int, name: str, tensor: NDArray) -> None:
    """Raises a ValueError if it is not of the kind that its name says."""
    if tensor.ndim not in TENSORS[_kind(name)]:
        raise ValueError(f"{name} has shape {tensor.shape}")
    if name.endswith("cohort") and not np.isfinite(tensor).all():
        raise ValueError(f"{name} holds what is no client")
    log.tensors.setdefault(name, {})[round] = tensor


def _curve(points: dict[int, float]) -> Curve:
    rounds, values = np.fromiter(points, np.int64), np.fromiter(points.values(), np.float64)
    order = np.argsort(rounds)
    return Curve(rounds[order], values[order])
