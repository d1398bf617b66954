"""The lines of ``record.jsonl``, which :class:`~fl_lightning.callbacks.RecordLogger` writes."""

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

RECORD_FILE = "record.jsonl"
SETTINGS_FILE = "settings.json"
"""Next to the record of a run that has no ``config.yaml``: its settings, flat, under the keys of a config."""
MOST = 10**9
"""Rounds, and clients: no run comes to as many."""
_LONGEST = 2**26  # bytes of a line: the accuracies of 3,500 clients on the data of each other
_MOST_PARTS = 10**5  # values of a line: scalars, and numbers in shapes
_LONGEST_EMPTY = 10**5  # side of a tensor without numbers
_MOST_DIMENSIONS = 8
_LATEST = 1e11  # in s since 1970: the year 5138


@dataclass(frozen=True, eq=False)
class Line:
    """Values that were logged together."""

    round: int
    time: float  # in s since 1970
    begins: bool  # a process wrote it first
    classes: list[str]  # names of the run's classes, in the order of labels, as far as the record has them
    scalars: dict[str, float]
    tensors: dict[str, NDArray[np.float32]]


def record_lines(file: BinaryIO) -> Iterator[Line]:
    """Decode a record.

    Raises:
        EOFError: at an incomplete last line.
        ValueError: at any other line that is not one of a record.
    """
    begins, classes = True, []
    while text := file.readline(_LONGEST):
        if not text.endswith(b"\n"):
            if len(text) == _LONGEST:
                raise ValueError("not a line of a record")
            raise EOFError
        if sum(map(text.count, (b",", b"[", b"{"))) > _MOST_PARTS:  # JSON of many parts takes fifty times its length in memory
            raise ValueError("not a line of a record")
        try:
            line = json.loads(text)
            if "begins" in line:
                begins, classes = True, [*map(_text, line.get("classes", classes))]
                continue
            yield _line(line, begins, classes)
        except (TypeError, KeyError, AttributeError, OverflowError, RecursionError, UnicodeError) as error:
            raise ValueError("not a line of a record") from error
        begins = False


def packed(numbers: ArrayLike) -> dict[str, Any]:
    """Numbers of any shape as a line has them: in float32, little-endian, as base64."""
    array = np.asarray(numbers, dtype="<f4")
    return {"shape": array.shape, "float32": b64encode(array.tobytes()).decode()}


def _text(name: str) -> str:
    name.encode()  # JSON can contain halves of characters, which nothing can write
    return name


def _line(line: dict[str, Any], begins: bool, classes: list[str]) -> Line:
    round, time = line["round"], float(line["time"])
    if type(round) is not int or not (0 <= round <= MOST and abs(time) <= _LATEST):
        raise ValueError(f"a line has round {round} at time {time}")
    scalars = {name: float(value) for name, value in line.get("scalars", {}).items()}
    tensors = {name: _unpacked(value) for name, value in line.get("tensors", {}).items()}
    _text("".join([*scalars, *tensors]))
    return Line(round, time, begins, classes, scalars, tensors)


def _unpacked(value: dict[str, Any]) -> NDArray[np.float32]:
    """Raises a ValueError if the count of numbers does not fit the shape, or no run has such a shape."""
    shape, numbers = value["shape"][:_MOST_DIMENSIONS], np.frombuffer(b64decode(value["float32"], validate=True), "<f4")
    if min(shape, default=0) < 0 or math.prod(shape) != len(numbers) or (not len(numbers) and max(shape) > _LONGEST_EMPTY):
        raise ValueError(f"a tensor of {len(numbers)} numbers has shape {shape}")
    return numbers.reshape(shape).copy()  # torch requires writable memory
