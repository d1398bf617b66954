"""What the command line says of an error: one line with the key, the value and the cure."""

import difflib
import re
from collections.abc import Sequence

from jsonargparse import ArgumentError

from fl_lightning import losses, methods, models, optimizers, privacy
from fl_lightning.data import partitions

# Lines of jsonargparse's nested messages that tell a user of the command line nothing.
_NOISE = re.compile(
    r"^(Does not validate against any of the Union subtypes|Subtypes: .*|Errors:|Given value type: .*"
    r"|Given value: (?:Namespace|NestedArg|\{).*"
    r"|Expected a <class 'NoneType'>.*|Expected a path but .*|Problem with given class_path .*|\d+ validation errors?.*)$"
)
# What is said of a key that may be a name or an object, after what is wrong with the object.
_NO_STRING = "Expected a <class 'str'>"


def error_line(error: Exception) -> str:
    """The message of an error in one line, with the nearest known name where a class was not found."""
    lines = [line.strip().removeprefix("- ") for line in (str(error) or type(error).__name__).splitlines()]
    kept = dict.fromkeys(line for line in lines if line and not _NOISE.match(line))
    if any(not line.startswith(("Parser key", _NO_STRING)) for line in kept):
        kept.pop(_NO_STRING, None)
    message = " ".join([*kept, *getattr(error, "__notes__", ())])
    for pattern, say in _REPHRASED.items():
        if match := re.search(pattern, message):
            return say(_key_path(lines), match, message)
    expected = (ValueError, OSError, TypeError, FloatingPointError, MemoryError, ArgumentError)
    return message if isinstance(error, expected) else f"{type(error).__name__}: {message}"


def _missing(key: str, match: re.Match[str], message: str) -> str:
    return f"{key}.{match[1]} is missing: give it, or a config, such as --config digits_tce.yaml"


def _wrong_type(key: str, match: re.Match[str], message: str) -> str:
    value = f" is {match[2] or match[3]}," if match[2] or match[3] else ""
    return f"{key}{value} must be of type {match[1]}"


def _unknown_choice(key: str, match: re.Match[str], message: str) -> str:
    return f"{key} is {match[2]}, must be one of {match[1].replace(chr(39), '')}"


def _unknown_class(key: str, match: re.Match[str], message: str) -> str:
    if values := re.search(r"Expected a <class '(\w+)'>", message):
        return f"{key} is {match[1]}, must be of type {values[1]}"
    return f"{key} is {match[1]}, which is no class that can be imported: {_known_classes(key, match[1])}"


def _unknown_option(key: str, match: re.Match[str], message: str) -> str:
    full = ".".join(filter(None, (key, match[1].removeprefix("--"))))
    return f"{full} is no option here: --help and, of fit, --print_config show those there are"


# What jsonargparse says, as patterns, and what we say instead; the first that matches is taken.
_REPHRASED = {
    r"the following arguments are required: ([\w.]+)": _missing,
    r"Expected a dot import path string: (\S+)": _unknown_class,
    r"(?:module '[\w.]+' has no attribute '|No fl_lightning attribute )(\w+)": _unknown_class,
    r"Expected a typing\.Literal\[([^\]]+)\]\. Got value: (\S+)": _unknown_choice,
    r"Expected a <class '(\w+)'>(?:\. Got value: (\S+)|.*Given value: (\S+))?": _wrong_type,
    r"(?:Option|Key|Group key) '([\w.]+)' is not (?:accepted|expected)": _unknown_option,
    r"Subcommand '\w+' does not accept option '([\w.]+)'": _unknown_option,
    r"unrecognized arguments: (\S+)": _unknown_option,
}


def _key_path(lines: Sequence[str]) -> str:
    """The key a nested message is about, such as ``model.net``."""
    return ".".join(match[1] for line in lines if (match := re.search(r'Parser key "([\w.]+)"', line)))


def _known_classes(key: str, name: str) -> str:
    package = {
        "model": methods,
        "model.net": models,
        "model.loss": losses,
        "model.privacy": privacy,
        "model.server_optimizer": optimizers,
        "data.partition": partitions,
    }.get(key)
    if package is None:
        return "give its full import path, such as torch.optim.SGD"
    close = difflib.get_close_matches(name, package.__all__, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(package.__all__)}, or give a full import path"
