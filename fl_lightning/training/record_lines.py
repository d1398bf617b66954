"""The lines of ``record.jsonl``, which :class:`~fl_lightning.callbacks.RecordLogger` writes."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Line:
    """What was logged at once."""

    round: int
    time: float  # in s since 1970
    begins: bool  # a process wrote it first
    scalars: dict[str, float]
    tensors: dict[str, NDArray[np.float32]]
    histograms: dict[str, NDArray[np.float64]]  # (n, 2): right edge, count


def record_lines(data: bytes) -> Iterator[Line]:
    """Decode a record.

    Raises:
        EOFError: at a last line that is not whole.
        ValueError: at a line that is none of a record.
    """
    begins = True
    for text in data.splitlines(keepends=True):
        if not text.endswith(b"\n"):
            raise EOFError
        try:
            line = json.loads(text)
            if "begins" in line:
                begins = True
                continue
            yield _line(line, begins)
        except (TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError("no line of a record") from error
        begins = False


def _line(line: dict[str, Any], begins: bool) -> Line:
    round, time = line["round"], float(line["time"])
    if type(round) is not int or abs(round) >= 2**63 or not math.isfinite(time):
        raise ValueError("a line has no round or no time")
    return Line(
        round,
        time,
        begins,
        {name: float(value) for name, value in line.get("scalars", {}).items()},
        {name: np.array(value, np.float32) for name, value in line.get("tensors", {}).items()},
        {name: np.array(value, np.float64).reshape(-1, 2) for name, value in line.get("histograms", {}).items()},
    )
