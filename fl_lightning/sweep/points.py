"""The variations of a sweep: ``--set KEY=VALUES`` and ``--seeds``, and the points and runs that result."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from fl_lightning.checks import check_range

Point = Mapping[str, str]  # key of the command line -> value as typed
Drawn = Literal["random", "tpe"]  # searches that draw points

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(:log)?")
_CLOSING = {"[": "]", "{": "}", "(": ")"}
_LONGEST_NAME = 120  # file systems allow 255 bytes
SET_BY_THE_SWEEP = {
    "seed_everything": "--seeds",
    "trainer.default_root_dir": "--out",
    "ckpt_path": "nothing, as runs resume from their checkpoints",
    "config": "--config once for all runs",
}
"""Key of the command line -> what to give instead."""


@dataclass(frozen=True)
class Choices:
    """A key with a list of values, as they were typed."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Range:
    """A key with any number between two ends, a whole one if both ends are whole."""

    key: str
    low: float
    high: float
    log: bool
    whole: bool

    @property
    def values(self) -> tuple[str, ...]:
        """Both ends, as on the command line."""
        return tuple(as_typed(int(end) if self.whole else end) for end in (self.low, self.high))


Axis = Choices | Range


@dataclass(frozen=True)
class Run:
    """One training: a point and a seed. Its name is its folder in the sweep's."""

    point: Point
    seed: int

    @property
    def name(self) -> str:
        """Path of the run's folder in that of the sweep."""
        return f"{point_name(self.point)}/seed_{self.seed}"


def parse_axes(texts: Sequence[str]) -> list[Axis]:
    """The keys that the ``--set`` options vary, in their order.

    Raises:
        ValueError: naming the option, if one is not ``KEY=VALUES``, a value is missing, or something is given twice.
    """
    axes = [_parse_axis(text) for text in texts]
    keys = [axis.key for axis in axes]
    if twice := _repeated(keys):
        raise ValueError(f"--set {twice} is given twice: put all its values into one, --set {twice}=A,B,C")
    return axes


def parse_seeds(text: str) -> list[int]:
    """The seeds of ``--seeds``: ``3`` means 1, 2 and 3; ``1,2,5`` and ``[7]`` mean these seeds.

    Raises:
        ValueError: if there is none, or one is not a whole number of at least 0, or is given twice.
    """
    cure = "give how many, --seeds 3, or which, --seeds 1,2,5 or --seeds [7]"
    listed = re.fullmatch(r"\[(.*)\]", text.strip())
    inner = listed[1] if listed else text
    if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", inner):
        raise ValueError(f"--seeds is {text}: {cure}")
    seeds = [int(part) for part in inner.split(",")]
    if not listed and len(seeds) == 1:
        check_range("--seeds", seeds[0], at_least=1, hint=cure)
        return list(range(1, seeds[0] + 1))
    for seed in seeds:
        check_range("--seeds", seed, below=2**32)
    if twice := _repeated([str(seed) for seed in seeds]):
        raise ValueError(f"--seeds has {twice} twice: {cure}")
    return seeds


def grid(axes: Sequence[Choices]) -> list[Point]:
    """All combinations; the last key varies fastest."""
    return [dict(zip((axis.key for axis in axes), values, strict=True)) for values in product(*(axis.values for axis in axes))]


def point_name(point: Point) -> str:
    """A folder's name for a point, such as ``loss=CrossEntropy,lr=0.1``; ``base`` if nothing is varied.

    Characters that a folder's name should not contain become ``_``; a digest of the point then distinguishes names.
    """
    values = zip(short_keys(point), point.values(), strict=True)
    whole = ",".join(f"{key}={value}" for key, value in values) or "base"
    name = re.sub(r"[^\w.,=+-]", "_", whole)[:_LONGEST_NAME]
    return name if name == whole else f"{name}~{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def short_keys(point: Point) -> list[str]:
    """The last parts of the keys, or whole keys if their last parts are equal."""
    last_parts = [key.rsplit(".", 1)[-1] for key in point]
    return [last if last_parts.count(last) == 1 else key for key, last in zip(point, last_parts, strict=True)]


def as_typed(value: float | str) -> str:
    """A value as typed on the command line, a number with six digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _parse_axis(text: str) -> Axis:
    key, equals, values = text.partition("=")
    key = key.strip().removeprefix("--")
    if not equals or not key:
        raise ValueError(f"--set {text} must be KEY=VALUES, such as --set model.optimizer.lr=0.01,0.1")
    if key in SET_BY_THE_SWEEP:
        raise ValueError(f"--set {key} cannot be varied so: give {SET_BY_THE_SWEEP[key]}")
    if match := _RANGE.fullmatch(values.strip()):
        return _parse_range(key, match)
    parts = [part.strip() for part in _split(key, values)]
    if "" in parts:
        raise ValueError(f"--set {text} has an empty value: give values between commas, null for none")
    if twice := _repeated(parts):
        raise ValueError(f"--set {key} has {twice} twice: leave one out")
    return Choices(key, tuple(_unquoted(part) for part in parts))


def _parse_range(key: str, match: re.Match[str]) -> Range:
    low, high, log = float(match[1]), float(match[2]), match[3] is not None
    if not low < high or (log and low <= 0):
        must = "go from a number to a higher one" + (", both above 0" if log else "")
        raise ValueError(f"--set {key}={match[0]} must {must}, such as {key}=0.001..0.1:log")
    whole = all(re.fullmatch(r"[-+]?\d+", end) for end in (match[1], match[2]))
    return Range(key, low, high, log, whole)


def _split(key: str, text: str) -> Iterator[str]:
    """Parts between commas, except for commas in brackets or quotes."""
    expected: list[str] = []  # closing characters of the open brackets and quotes
    start = 0
    for position, character in enumerate(text):
        if expected and character == expected[-1]:
            expected.pop()
        elif not expected or expected[-1] not in "\"'":
            if character in "\"'":
                expected.append(character)
            elif character in _CLOSING:
                expected.append(_CLOSING[character])
            elif character == "," and not expected:
                yield text[start:position]
                start = position + 1
    if expected:
        raise ValueError(f"--set {key}={text} lacks a closing {expected[-1]}: quote it for the shell, --set '{key}=[1,2],[3]'")
    yield text[start:]


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


def _repeated(items: Sequence[str]) -> str | None:
    return next((item for i, item in enumerate(items) if item in items[:i]), None)


def as_options(point: Mapping[str, str]) -> list[str]:
    """A point as options of ``fit``: a class before its own options, which ``fit`` reads in this order."""
    by_depth = sorted(point, key=lambda key: sum(key.startswith(f"{other}.") for other in point))
    return [f"--{key}={point[key]}" for key in by_depth]
