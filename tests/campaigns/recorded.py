"""Records as a run's processes write them, at times of choice, in code that shares nothing with the package."""

import base64
import json
from pathlib import Path
from typing import Any, Self

import numpy as np


def packed(values: Any) -> dict[str, Any]:
    """Numbers of any shape as a line has them."""
    array = np.asarray(values, np.float32)
    return {"shape": list(array.shape), "float32": base64.b64encode(array.astype("<f4").tobytes()).decode()}


def line(round: Any, time: Any = 1.7e9, **content: Any) -> str:
    """A line with ``scalars`` or ``tensors``."""
    return json.dumps({"round": round, "time": time, **content}) + "\n"


def lines(folder: Path) -> list[dict[str, Any]]:
    """Those of a folder's record, in order, without times and beginnings of processes."""
    decoded = [json.loads(text) for text in (folder / "record.jsonl").read_text().splitlines()]
    return [{name: value for name, value in one.items() if name != "time"} for one in decoded if "begins" not in one]


class RecordWriter:
    """Appends to the record of a folder as one process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "record.jsonl"
        self._append(json.dumps({"begins": 1.7e9}) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing is open."""

    def add_scalar(self, name: str, value: float, round: int, time: float = 1.7e9) -> None:
        self._append(line(round, time, scalars={name: value}))

    def add_tensor(self, name: str, values: Any, round: int, time: float = 1.7e9) -> None:
        self._append(line(round, time, tensors={name: packed(values)}))

    def _append(self, text: str) -> None:
        with self.file.open("a") as file:
            file.write(text)
