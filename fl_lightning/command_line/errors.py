"""The line for an error, with the key, the value and the cure."""

import os
import re
import traceback
from collections.abc import Sequence
from pathlib import Path

from fl_lightning.command_line.parsing import as_one_line, chain
from fl_lightning.config_files.reading import options_of, shortened
from fl_lightning.processes.device_errors import device_error_line
from fl_lightning.state.atomic_files import FULL_DISK

_PACKAGE = str(Path(__file__).parents[1])
_EXPECTED = (ValueError, OSError, TypeError, FloatingPointError, MemoryError, ModuleNotFoundError)
_OURS = r"^\s*- ((?:model|data|trainer|callbacks)\.[\w.]+ (?:is|has) .*)$"  # among jsonargparse's lines about a union


def error_line(error: Exception, given: Sequence[str] = ()) -> str:
    """The message of an error in one line.

    Args:
        error: any error; for objects that the parser builds, the one that they raised.
        given: the command line.
    """
    whole = str(error)
    *_, error = chain(error)
    if isinstance(error, OSError) and error.errno in FULL_DISK:
        where = error.filename or "a file or the standard output"
        return f"{where} could not be written ({error.strerror}): free some space or choose another folder"
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        path = str(error.filename)
        named = [f"{key} is {shortened(value)}, where " for key, value in options_of(given) if value and path.startswith(value)]
        reason = f"{shortened(path)} cannot be used ({error.strerror}): give another path, or change what is there"
        return "".join([*named[-1:], reason])
    if (line := device_error_line(error)) is not None:
        return line
    ours = re.search(_OURS, whole, re.MULTILINE) if str(error) != whole else None
    said = ours[1] if ours else str(error) or type(error).__name__
    message = as_one_line(" ".join([said, *getattr(error, "__notes__", ())]))
    kind = "" if isinstance(error, _EXPECTED) else f"{type(error).__name__}: "
    return f"{kind}{message}{_in_users_file(error)}"


def _in_users_file(error: Exception) -> str:
    """Where an error arose, if that is code in the working folder: of our own refusals it is not."""
    here = f"{os.getcwd()}{os.sep}"
    frames = traceback.extract_tb(error.__traceback__)
    of_user = [
        frame
        for frame in (frames[-1:] if isinstance(error, _EXPECTED) else frames)
        if frame.filename.startswith(here) and not frame.filename.startswith(_PACKAGE) and "site-packages" not in frame.filename
    ]
    return f" ({of_user[-1].filename.removeprefix(here)}, line {of_user[-1].lineno})" if of_user else ""
