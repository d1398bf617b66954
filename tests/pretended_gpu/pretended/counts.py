"""What the host asks of the pretended GPU: launches, copies and waits, each with the line of our code that caused it."""

import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

HERE = str(Path(__file__).parent)
ROOT = Path(__file__).parents[3]
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


@dataclass
class Counts:
    """By what was asked for and the line that asked."""

    launches: Counter = field(default_factory=Counter)  # kernels, by operator
    copies: Counter = field(default_factory=Counter)  # between host and device, by direction
    waits: Counter = field(default_factory=Counter)  # of the host for the device, by reason

    def __str__(self) -> str:
        waits = "".join(f"\n  {count} x {what} at {line}" for (what, line), count in self.waits.most_common(30))
        return f"{self.launches.total()} launches, {self.copies.total()} copies, {self.waits.total()} waits{waits}"

    def busiest_lines(self, most: int) -> list[tuple[str, int]]:
        """The lines that launch most, and how often."""
        by_line: Counter = Counter()
        for (_, line), number in self.launches.items():
            by_line[line] += number
        return by_line.most_common(most)


_open: list[Counts] = []
_under_way: list[tuple[Tensor, Tensor]] = []  # memory of the host, and the values that come into it


@contextmanager
def counting() -> Iterator[Counts]:
    """Counts of a block; blocks may be nested, and the outer one counts what the inner one does."""
    _open.append(Counts())
    try:
        yield _open[-1]
    finally:
        _open.pop()


@contextmanager
def as_one_launch(name: str) -> Iterator[None]:
    """What a CUDA graph replays: the host launches it once, whatever kernels are in it; copies and waits count as ever."""
    kernels = [counts.launches.copy() for counts in _open]
    try:
        yield
    finally:
        for counts, before in zip(_open, kernels, strict=True):
            counts.launches = before
        launch(name)


def launch(name: str) -> None:
    """The host starts a kernel."""
    for counts in _open:
        counts.launches[name, line()] += 1


def transfer(direction: str, what: str, waits: bool = True) -> None:
    """Values go ``up`` to the device or ``down`` to the host, which waits unless memory is pinned."""
    for counts in _open:
        counts.copies[f"{direction}, {what}", line()] += 1
    if waits:
        wait(f"copy {direction}, {what}")


def comes_later(values: Tensor) -> Tensor:
    """Memory of the host that has these values only after the next wait; until then it has others."""
    memory = torch.full_like(values, 0 if values.dtype == torch.bool else 99)
    _under_way.append((memory, values))
    return memory


def wait(why: str) -> None:
    """The host stands still until the device has done all it was asked."""
    while _under_way:
        memory, values = _under_way.pop()
        memory.copy_(values)
    for counts in _open:
        counts.waits[why, line()] += 1


def line() -> str:
    """The innermost line of ours that led here, such as ``fl_lightning/losses.py:40``; ``nowhere`` if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        if name := _ours(frame.f_code.co_filename):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "nowhere"


@cache
def _ours(file: str) -> str | None:
    """A file of the package or its tests by its path in the repository; None for libraries and for this folder."""
    if file.startswith((HERE, "<", *LIBRARIES)) or not Path(file).is_relative_to(ROOT):
        return None
    return str(Path(file).relative_to(ROOT))
