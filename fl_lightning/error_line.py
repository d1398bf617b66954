"""What the command line says of an error: one line with the key, the value and the cure."""

import difflib
import re
from collections.abc import Sequence

from jsonargparse import ArgumentError

from fl_lightning import losses, methods, models
from fl_lightning.data import partitions

# Lines of jsonargparse's nested messages that tell a user of the command line nothing.
_NOISE = re.compile(
    r"^(Does not validate against any of the Union subtypes|Subtypes: .*|Errors:|Given value type: .*|Given value: .*"
    r"|Expected a <class 'NoneType'>.*|Expected a path but .*|Problem with given class_path .*|\d+ validation errors?.*)$"
)


def error_line(error: Exception) -> str:
    """The message of an error in one line, with the nearest known name where a class was not found."""
    lines = [line.strip().removeprefix("- ") for line in (str(error) or type(error).__name__).splitlines()]
    kept = (
        list(dict.fromkeys(line for line in lines if line and not _NOISE.match(line)))
        if isinstance(error, ArgumentError)
        else lines
    )
    message = " ".join([*kept, *getattr(error, "__notes__", ())])
    key = _key_path(lines)
    if missing := re.search(r"the following arguments are required: ([\w.]+)", message):
        return f"{key}.{missing[1]} is missing: give it, or a config, such as --config digits_tce.yaml"
    if typed := re.search(r"Expected a <class '(\w+)'>\. Got value: (\S+)", message):
        return f"{key} is {typed[2]}, must be of type {typed[1]}"
    if unknown := re.search(r"Expected a dot import path string: (\S+)", message):
        if values := re.search(r"Expected a <class '(\w+)'>", message):
            return f"{key} is {unknown[1]}, must be of type {values[1]}"
        return f"{key} is {unknown[1]}, which is no class that can be imported: {_known_classes(key, unknown[1])}"
    if unknown := re.search(r"(?:Option|Key|Group key) '([\w.]+)' is not (?:accepted|expected)", message):
        return f"{key}.{unknown[1]} is no option here: fl-lightning fit --print_config shows those there are"
    expected = (ValueError, OSError, TypeError, FloatingPointError, ArgumentError)
    return message if isinstance(error, expected) else f"{type(error).__name__}: {message}"


def _key_path(lines: Sequence[str]) -> str:
    """The key a nested message is about, such as ``model.net``."""
    return ".".join(match[1] for line in lines if (match := re.search(r'Parser key "([\w.]+)"', line)))


def _known_classes(key: str, name: str) -> str:
    package = {"model": methods, "model.net": models, "model.loss": losses, "data.partition": partitions}.get(key)
    if package is None:
        return "give its full import path, such as torch.optim.SGD"
    close = difflib.get_close_matches(name, package.__all__, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(package.__all__)}, or give a full import path"
