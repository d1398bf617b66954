"""What the command line says of an error: one line with the key, the value and the cure."""

import errno
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from jsonargparse import ArgumentError, ArgumentParser, Namespace

from fl_lightning.checks import check_range
from fl_lightning.command_line.known_classes import known_classes, known_names, why_not
from fl_lightning.command_line.unknown_option import did_you_mean, parser_options, unknown_option
from fl_lightning.training.device_errors import device_error_line

# Lines of jsonargparse's nested messages that tell a user of the command line nothing.
_NOISE = re.compile(
    r"^(Does not validate against any of the Union subtypes|Subtypes: .*|Errors:|Given value type: .*"
    r"|Given value: (?:Namespace|NestedArg|\{).*"
    r"|Expected a <class 'NoneType'>.*|Expected a path but .*|Problem with given class_path .*|\d+ validation errors?.*)$"
)
_ADDED = re.compile(r"Type \S*Callable\[.*\] expects a function or a callable class: |\. Got value: Namespace\(.*\)$")
# What is said of a key that may be a name or an object, after what is wrong with the object.
_NO_STRING = "Expected a <class 'str'>"
# Where a nested message repeats what the user gave, the innermost first.
_VALUES = (
    r"Given value: (?!Namespace|NestedArg)(.+?)(?:\. Got value: .*)?$",
    r"Got value: (?!Namespace|NestedArg)(.+?)(?:\. Got value: .*)?$",
    r"but got (.+?)(?:\. Got value: .*)?$",
    r"Expected a path but (.+) either not accessible",
    r"Unable to load config '(.*)'$",
)
_NEGATIVE = re.compile(r"-(\.?(inf|nan)|infinity|\d+\.?\d*e[+-]?\d+|\.\d+e[+-]?\d+)", re.IGNORECASE)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what the system says of a disk that is full
_EXAMPLES = {"data.source": "fl_lightning.data.ImageFolder"}  # of the classes that an option takes by import path
_TYPES = {"Sequence": "list", "Iterable": "list", "collections.abc.Sequence": "list", "collections.abc.Iterable": "list"}


def error_line(error: Exception, given: Sequence[str] = (), known: Callable[[], Sequence[str]] = tuple) -> str:
    """The message of an error in one line, with the nearest known name where a class or an option was not found.

    Args:
        error: of the parser or of anything else.
        given: the command line.
        known: gives the options that it may have.
    """
    if isinstance(error, OSError) and error.errno in _FULL:
        where = error.filename or "a file or the standard output"
        return f"{where} could not be written ({error.strerror}): free some space or choose another folder"
    if (line := device_error_line(error)) is not None:
        return line
    text = str(error) or type(error).__name__
    lines = [_ADDED.sub("", line.strip().removeprefix("- ")) for line in text.splitlines()]
    kept = dict.fromkeys(line for line in lines if line and not _NOISE.match(line))
    if any(not line.startswith(("Parser key", _NO_STRING)) for line in kept):
        kept.pop(_NO_STRING, None)
    message = " ".join([*kept, *getattr(error, "__notes__", ())])
    if isinstance(error, ArgumentError):
        key = _key_path(text)
        if match := re.search(_UNKNOWN, text):
            return unknown_option(key, ".".join(filter(None, match.groups())), text, given, known())
        if match := re.search(_NO_VALUE, message):
            return f"{_without_value(match[1], given)} has no value: give one"
        if option := _before_its_class(key, given):
            first = option.rpartition(".")[0]
            return f"{option} is given before its class: give --{first} first, then the options of that class"
        for pattern, say in _REPHRASED.items():
            if match := re.search(pattern, message):
                return say(key, _value(text), match)
    expected = (ValueError, OSError, TypeError, FloatingPointError, MemoryError, ModuleNotFoundError, ArgumentError)
    return message if isinstance(error, expected) else f"{type(error).__name__}: {message}"


def parse(parser: ArgumentParser, arguments: Sequence[str], known: Callable[[], Sequence[str]] | None = None) -> Namespace:
    """What a command line says.

    Args:
        parser: with ``exit_on_error=False``.
        arguments: the command line.
        known: gives the options that it may have; by default the parser's.

    Raises:
        ValueError: in one line, if it cannot be parsed, or a number is NaN, infinite or beyond 64 bits.
    """
    arguments = _with_negative_numbers(arguments)
    try:
        config = parser.parse_args(arguments)
    except ArgumentError as error:
        raise ValueError(error_line(error, arguments, known or partial(parser_options, parser))) from error
    _check_finite("", config)
    return config


def _with_negative_numbers(arguments: Sequence[str]) -> list[str]:
    """``--KEY=-inf`` for ``--KEY -inf``: argparse takes what begins with a dash for an option, but for plain numbers."""
    joined: list[str] = []
    for argument in arguments:
        if joined and re.fullmatch(r"--[\w.]+", joined[-1]) and _NEGATIVE.fullmatch(argument):
            joined[-1] = f"{joined[-1]}={argument}"
        else:
            joined.append(argument)
    return joined


def _check_finite(key: str, value: object) -> None:
    """No option takes NaN or infinity, which pass for numbers everywhere, or a whole number that no tensor holds."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{key} is {value}, must be a finite number")
    if isinstance(value, int):
        check_range(key, value, above=-(2**63), below=2**63)
    parts = (
        value.items() if isinstance(value, dict | Namespace) else enumerate(value) if isinstance(value, list | tuple) else ()
    )
    for name, part in parts:
        shown = "" if name in ("class_path", "init_args") or isinstance(name, int) else str(name)
        _check_finite(".".join(filter(None, (key, shown.replace("init_args.", "")))), part)


def _key_path(text: str) -> str:
    """The key a nested message is about, such as ``model.net``: the first branch of its alternatives."""
    path: list[str] = []
    depth = -1
    for line in text.splitlines():
        if match := re.search(r'Parser key "([\w.]+)"', line):
            indent = len(line) - len(line.lstrip(" -"))
            if indent <= depth:
                break
            path, depth = [*path, *([] if match[1] in path else [match[1]])], indent
    return ".".join(path)


def _value(text: str) -> str:
    found = (match[1] for pattern in _VALUES if (match := re.search(pattern, text, re.MULTILINE)))
    value = next(found, "")
    return value if len(value) < 80 else f"{value[:77]}..."


def _is(key: str, value: str) -> str:
    return f"{key} is {value}," if value else key


def _missing(key: str, value: str, match: re.Match[str]) -> str:
    name = ".".join(filter(None, (key, match[1].split(".", 1)[-1] if match[1].startswith("fit.") else match[1])))
    return f"{name} is missing: give it, or a config, such as --config digits_tce.yaml"


def _wrong_type(key: str, value: str, match: re.Match[str]) -> str:
    if choices := re.findall(r"typing\.Literal\[([^\]]+)\]", match.string):
        return f"{_is(key, value)} must be one of {', '.join(choices).replace(chr(39), '')}"
    if value.lower().lstrip("+-") in ("nan", "inf", ".nan", ".inf", "infinity"):
        return f"{_is(key, value)} must be a finite number"
    if key == "seed_everything":  # whose type is Lightning's: true asks it for a random one
        return f"{_is(key, value)} must be a whole number: a run must be repeatable"
    names: list[str] = [name for name in re.findall(r"Expected an? <class '([\w.]+)'>", match.string) if name != "NoneType"]
    kinds = dict.fromkeys(_TYPES.get(name, name) for name in names)
    return f"{_is(key, value)} must be of type {' or '.join(kinds)}"


def _wrong_number(key: str, value: str, match: re.Match[str]) -> str:
    return f"{_is(key, value)} must hold {match[1]} values"


def _no_class(key: str, value: str, match: re.Match[str]) -> str:
    if re.search(r"Expected a <class '(?:int|float|bool)'>", match.string):
        return _wrong_type(key, value, match)
    name = match[1] or value
    return f"{key} is {name}, which is no class that can be imported: {_near_class(key, name)}"


def _several_classes(key: str, value: str, match: re.Match[str]) -> str:
    return f"{key} is {match[1]}, a name that several classes have: give a full import path, such as {match[2]}"


def _cannot_be(key: str, value: str, match: re.Match[str]) -> str:
    return f"{_is(key, value)} {match[1]}"


def _no_such_class(key: str, value: str, match: re.Match[str]) -> str:
    return f"{_is(key, value)} which is no class that fits here: {_near_class(key, value)}"


def _no_keys(key: str, value: str, match: re.Match[str]) -> str:
    return f"{_is(key, value)} must hold keys and their values: give them one by one, as in --{key}.KEY VALUE"


def _before_its_class(key: str, given: Sequence[str]) -> str | None:
    """The option that an error about ``key`` is about, where the class that has it comes later on the command line alone."""
    keys = [one.partition("=")[0].removeprefix("--") for one in given if one.startswith("--")]
    for number, option in enumerate(keys):
        of_class = option.rpartition(".")[0]
        is_early = of_class in keys[number + 1 :] and of_class not in keys[:number]
        if "." in of_class and is_early and key in (option, of_class):  # the blocks of the config are no classes
            return option
    return None


def _without_value(option: str, given: Sequence[str]) -> str:
    """The option as it was given: of a nested one the parser names the first part alone."""
    bare = (one for one, after in pairwise([*given, "--"]) if one.startswith(f"--{option}") and after.startswith("--"))
    return next(bare, option).removeprefix("--")


_NO_VALUE = r"argument (?:-\w/)?(?:--)?([\w.-]+): expected one argument"
_UNKNOWN = (
    r"(?:Option|Key|Group key) '([\w.]+)' is not (?:accepted|expected)|Group '([\w.]+)' does not accept option '([\w.]+)'"
    r"|unrecognized arguments: (\S+)"
)
# What jsonargparse says, as patterns, and what we say instead; the first that matches is taken.
_REPHRASED: dict[str, Callable[[str, str, re.Match[str]], str]] = {
    r"(\w+ cannot be: .*?)(?: Given value: .*)?$": _cannot_be,
    r"the following arguments are required: ([\w.]+)": _missing,
    r"Multiple subclasses with name (\w+)\..*?: ([\w.]+)": _several_classes,
    r"Expected a dot import path string: (.*?)(?: Expected .*| Given .*)?$": _no_class,
    r"(?:module '[\w.]+' has no attribute '|No fl_lightning attribute )(\w+)": _no_class,
    r"No module named|does not correspond to a subclass|Unexpected import object|is abstract": _no_such_class,
    r"Not a valid subclass of|Expected an import path or a subclass spec": _no_such_class,
    r"Unable to load config": _no_keys,
    r"Expected a tuple with (\d+) elements": _wrong_number,
    r"Expected an? (?:<class '[\w.]+'>|typing\.Literal)": _wrong_type,
}


def _near_class(key: str, name: str) -> str:
    names = known_classes(key)
    if not names:
        return f"give its full import path, such as {_EXAMPLES.get(key, 'torch.optim.SGD')}"
    nearest = why_not(key, name) or did_you_mean(name, known_names(key))
    return nearest or f"there are {', '.join(names)}, or give a full import path"
