"""Refusals in one line: the key as the user typed it, its value, what is allowed and, where there is one, a hint."""

import difflib
import math
import operator
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from fnmatch import fnmatch
from numbers import Integral
from pathlib import Path
from typing import Any, TypedDict, Unpack, get_args


class Limits(TypedDict, total=False):
    """The limits of a range."""

    above: float
    at_least: float
    at_most: float
    below: float


_COMPARISONS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "above": (operator.gt, "above"),
    "at_least": (operator.ge, "at least"),
    "at_most": (operator.le, "at most"),
    "below": (operator.lt, "below"),
}


class ArgumentError(ValueError):
    """A refusal of one argument.

    Args:
        name: of the argument, or its key of the command line.
        problem: what it is and must be, such as ``is -1, must be at least 0``.
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name, self.problem = name, problem

    def __str__(self) -> str:
        return f"{self.name} {self.problem}"


def check_file(key: str, path: str | os.PathLike[str], cure: str) -> None:
    """Check that a path is a file.

    >>> check_file("data.source", "missing.npz", cure="give a .npz file")
    Traceback (most recent call last):
    FileNotFoundError: data.source is missing.npz, which does not exist: give a .npz file

    Args:
        key: of the command line.
        path: given for it.
        cure: what to do.

    Raises:
        FileNotFoundError: if it is empty, does not exist, or is a folder, a pipe or a device.
    """
    if path == "":
        raise FileNotFoundError(f"{key} is empty: {cure}")
    if Path(path).is_file():
        return
    what = "is a folder" if Path(path).is_dir() else "is a pipe or a device" if Path(path).exists() else "does not exist"
    raise FileNotFoundError(f"{key} is {path}, which {what}: {cure}")


@contextmanager
def under_keys(keys: Mapping[str, str]) -> Iterator[None]:
    """Refusals of a function's arguments, in the block, name keys of the command line.

    >>> with under_keys({"alpha": "data.partition.alpha"}):
    ...     check_range("alpha", 0.0, above=0)
    Traceback (most recent call last):
    fl_lightning.checks.ArgumentError: data.partition.alpha is 0.0, must be above 0

    Args:
        keys: by the name of the argument; others keep their names.
    """
    try:
        yield
    except ArgumentError as error:
        raise ArgumentError(keys.get(error.name, error.name), error.problem) from error


@contextmanager
def in_code_of(key: str, given: object) -> Iterator[None]:
    """An error in the block that names no key is noted to come from the code of what a key was given.

    A note appears at the end of the command line's message, and under a traceback.

    Args:
        key: of the command line.
        given: an object that a user may have written.
    """
    try:
        yield
    except Exception as error:
        if f"{key.partition('.')[0]}." not in str(error):
            error.add_note(f"({key} {type(given).__name__})")
        raise


def check_range(key: str, value: float | None, *, hint: str = "", **limits: Unpack[Limits]) -> None:
    """Refuse a number outside of its range; None, NaN, texts and lists are outside of any.

    >>> check_range("model.mu", -1, at_least=0, hint="0 is FedAvg")
    Traceback (most recent call last):
    fl_lightning.checks.ArgumentError: model.mu is -1, must be at least 0: 0 is FedAvg

    Args:
        key: of the command line, or the name of a function's argument.
        value: what it was given.
        at_least, above, at_most, below: the limits; ``below=math.inf`` is any finite number.
        hint: what a value means, or what is usual.

    Raises:
        ArgumentError: if the value is outside; a ValueError.
    """
    if not _within(value, limits):
        number = "a number " if isinstance(value, str) else ""
        raise ArgumentError(key, f"is {_shown(value)}, must be {number}{_in_words(limits)}{f': {hint}' if hint else ''}")


def check_whole(key: str, value: float | None, *, hint: str = "", **limits: Unpack[Limits]) -> None:
    """Refuse what is not a whole number, or one outside of its range.

    >>> check_whole("model.adapter.r", 1.5, at_least=1)
    Traceback (most recent call last):
    fl_lightning.checks.ArgumentError: model.adapter.r is 1.5, must be a whole number

    Args:
        key, value, at_least, above, at_most, below, hint: as in :func:`check_range`.

    Raises:
        ArgumentError: a ValueError.
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ArgumentError(key, f"is {_shown(value)}, must be a whole number{f': {hint}' if hint else ''}")
    check_range(key, value, hint=hint, **limits)


def check_each(key: str, values: Iterable[float], *, hint: str = "", **limits: Unpack[Limits]) -> None:
    """Refuse a list of numbers of which one is outside of a range.

    >>> check_each(
    ...     "callbacks.summary.targets",
    ...     [0.5, 90],
    ...     above=0,
    ...     at_most=1,
    ...     hint="0.9 is 90 %",
    ... )
    Traceback (most recent call last):
    fl_lightning.checks.ArgumentError: callbacks.summary.targets has 90, must be above 0 and at most 1: 0.9 is 90 %

    Args:
        key: of the command line, or the name of a function's argument.
        values: what it was given.
        at_least, above, at_most, below, hint: as in :func:`check_range`.

    Raises:
        ArgumentError: naming the first value outside; a ValueError.
    """
    for value in values:
        if not _within(value, limits):
            raise ArgumentError(key, f"has {value}, must be {_in_words(limits)}{f': {hint}' if hint else ''}")


def _within(value: Any, limits: Limits) -> bool:
    try:
        return all(_COMPARISONS[name][0](value, limit) for name, limit in limits.items())
    except TypeError:  # no number, such as None, a text or a list
        return False


def _shown(value: object) -> str:
    """As it is, but a text in quotes: it can look like a number."""
    return repr(value) if isinstance(value, str) else str(value)


def _in_words(limits: Limits) -> str:
    if "at_least" in limits and "at_most" in limits:
        return f"between {limits['at_least']:,} and {limits['at_most']:,}"
    named = ((_COMPARISONS[name][1], limit) for name, limit in sorted(limits.items()))
    return " and ".join("finite" if limit == math.inf else f"{words} {limit:,}" for words, limit in named)


def check_choice(key: str, value: object, choices: Any, hint: str = "") -> None:
    """Refuse a text that is none of several.

    >>> from typing import Literal
    >>> check_choice("model.client_state", "cloud", Literal["memory", "disk"])
    Traceback (most recent call last):
    fl_lightning.checks.ArgumentError: model.client_state is 'cloud', must be one of memory, disk

    Args:
        key: of the command line, or the name of a function's argument.
        value: what it was given.
        choices: a ``Literal`` of texts, the type of the argument; or the texts, where they are known at run time only.
        hint: what a value means, or what is usual.

    Raises:
        ArgumentError: if the value is none of them; a ValueError.
    """
    allowed = get_args(choices) or tuple(choices)
    if value not in allowed:
        raise ArgumentError(key, f"is {value!r}, must be one of {', '.join(allowed)}{f': {hint}' if hint else ''}")


def did_you_mean(name: str, known: Collection[str], otherwise: str) -> str:
    """The cure for a name that is none of those there are: the nearest one, or what to do where none is near.

    >>> did_you_mean("CNN3", ["CNN2", "MLP"], otherwise="give one of CNN2, MLP")
    'did you mean CNN2?'
    """
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else otherwise


def kind_of(value: object) -> str:
    """What a function of a user's returned, for a message: its type, as a tensor's values would fill the screen.

    >>> kind_of(None), kind_of(1.5)
    ('None', 'a value of type float')
    """
    return "None" if value is None else f"a value of type {type(value).__name__}"


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its kind if it has none.

    >>> first_line(RuntimeError("out of memory; see below")), first_line(KeyError())
    ('out of memory; see below', 'KeyError')
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "round"), counted(2_000, "round")
    ('1 round', '2,000 rounds')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def class_and_settings(given: object) -> str:
    """The class of an object and its public attributes, for ``__repr__``.

    >>> from types import SimpleNamespace
    >>> class_and_settings(SimpleNamespace(alpha=0.1, min_size=2, _drawn=None))
    'SimpleNamespace(alpha=0.1, min_size=2)'
    """
    settings = ", ".join(f"{name}={value}" for name, value in vars(given).items() if not name.startswith("_"))
    return f"{type(given).__name__}({settings})"


def check_list(key: str, values: Collection[Any] | None) -> None:
    """Refuse a text where a list is needed, which would count as a list of its letters, and a set or dict, without an order.

    >>> check_list("model.trained", "classifier.*")
    Traceback (most recent call last):
    ValueError: model.trained is 'classifier.*', must be a list: give ['classifier.*']

    Raises:
        ValueError: naming the key.
    """
    if isinstance(values, str | Set | Mapping):
        raise ValueError(f"{key} is {values!r}, must be a list: give {[values] if isinstance(values, str) else [*values]}")


def check_patterns(key: str, patterns: Sequence[str], names: Collection[str]) -> None:
    """Refuse a pattern that fits no name.

    >>> check_patterns(
    ...     "model.personal", ["head.*"], ["features.0.weight", "classifier.weight"]
    ... )
    Traceback (most recent call last):
    ValueError: model.personal has 'head.*', which fits no weight of model.net: its layers are features, classifier

    Args:
        key: of the command line.
        patterns: as ``fnmatch`` takes them.
        names: of weights and buffers.

    Raises:
        ValueError: naming the first one that fits none, or is not a text.
    """
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ValueError(f"{key} has {pattern!r}, must be patterns of names: give texts, such as 'classifier.*'")
        if any(name.startswith(f"{pattern}.") for name in names):
            raise ValueError(f"{key} has {pattern!r}, a layer of model.net, must fit names of weights: give '{pattern}.*'")
        if not any(fnmatch(name, pattern) for name in names):
            layers = ", ".join(dict.fromkeys(name.split(".")[0] for name in names))
            raise ValueError(f"{key} has {pattern!r}, which fits no weight of model.net: its layers are {layers}")


def machine_memory() -> float:
    """Bytes of this machine's memory; infinite where the system does not tell it."""
    return math.inf if not hasattr(os, "sysconf") else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(num_bytes: int, what: str, cure: str) -> None:
    """Raise a ValueError, naming what takes so many bytes and the cure, if this machine's memory does not hold them."""
    if num_bytes > machine_memory():
        raise ValueError(
            f"{what} take {num_bytes / 1e9:,.1f} GB, this machine's memory has {machine_memory() / 1e9:,.1f}: {cure}"
        )
