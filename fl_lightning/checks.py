"""Refusals in one line: the key as the user typed it, its value, what is allowed and, where there is one, a hint."""

import math
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from typing import Any, get_args

Limits = list[tuple[float, Callable[[Any, Any], bool], str]]


def check_range(
    key: str,
    value: float | None,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    hint: str = "",
) -> None:
    """Refuse a number outside of its range; None and NaN are outside of any.

    >>> check_range("model.mu", -1, at_least=0, hint="0 is FedAvg")
    Traceback (most recent call last):
    ValueError: model.mu is -1, must be at least 0: 0 is FedAvg

    Args:
        key: of the command line.
        value: what it was given.
        at_least, above, at_most, below: the limits; ``below=math.inf`` is any finite number.
        hint: what a value means, or what is usual.

    Raises:
        ValueError: if the value is outside.
    """
    limits: Limits = [
        (limit, holds, words)
        for limit, holds, words in (
            (at_least, operator.ge, "at least"),
            (above, operator.gt, "above"),
            (at_most, operator.le, "at most"),
            (below, operator.lt, "below"),
        )
        if limit is not None
    ]
    if value is not None and all(holds(value, limit) for limit, holds, _ in limits):
        return
    if at_least is not None and at_most is not None:
        allowed = f"between {at_least:,} and {at_most:,}"
    else:
        allowed = " and ".join("finite" if limit == math.inf else f"{words} {limit:,}" for limit, _, words in limits)
    raise ValueError(f"{key} is {value}, must be {allowed}{f': {hint}' if hint else ''}")


def check_choice(key: str, value: object, choices: Any) -> None:
    """Refuse a text that is none of several.

    >>> from typing import Literal
    >>> check_choice("model.client_state", "cloud", Literal["memory", "disk"])
    Traceback (most recent call last):
    ValueError: model.client_state is 'cloud', must be one of memory, disk

    Args:
        key: of the command line.
        value: what it was given.
        choices: a ``Literal`` of texts, the type of the argument.

    Raises:
        ValueError: if the value is none of them.
    """
    allowed = get_args(choices)
    if value not in allowed:
        raise ValueError(f"{key} is {value!r}, must be one of {', '.join(allowed)}")


def check_patterns(key: str, patterns: Sequence[str], names: Collection[str]) -> None:
    """Refuse a pattern that fits no name.

    >>> check_patterns("model.personal", ["head.*"], ["features.0.weight", "classifier.weight"])
    Traceback (most recent call last):
    ValueError: model.personal has 'head.*', which fits no weight of model.net: its layers are features, classifier

    Args:
        key: of the command line.
        patterns: as ``fnmatch`` takes them.
        names: of weights and buffers.

    Raises:
        ValueError: naming the first one that fits none.
    """
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in names):
            layers = ", ".join(dict.fromkeys(name.split(".")[0] for name in names))
            raise ValueError(f"{key} has {pattern!r}, which fits no weight of model.net: its layers are {layers}")


@contextmanager
def needing_extra(extra: str, what: str) -> Iterator[None]:
    """Import libraries that only an extra installs, in the block.

    >>> with needing_extra("sweep", "fl-lightning sweep"):
    ...     import no_such_library
    Traceback (most recent call last):
    ModuleNotFoundError: fl-lightning sweep needs the library no_such_library: pip install 'fl-lightning[sweep]'

    Args:
        extra: its name in pyproject.toml.
        what: needs it.

    Raises:
        ModuleNotFoundError: if a library is missing, with the command that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        line = f"{what} needs the library {library}: pip install 'fl-lightning[{extra}]'"
        raise ModuleNotFoundError(line, name=error.name) from error
