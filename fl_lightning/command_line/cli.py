"""The command line: ``fl-lightning fit --config digits_tce.yaml``. After an error, one line and the exit code show it."""

import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from fl_lightning import __version__
from fl_lightning.checks import did_you_mean
from fl_lightning.command_line.closed_output import is_closed
from fl_lightning.command_line.commands import COMMANDS, SUBCOMMANDS
from fl_lightning.config_files.bundled import describe_configs
from fl_lightning.config_files.reading import config_text
from fl_lightning.run.quiet_lightning import quiet_lightning

_OVERVIEW = """\
usage: fl-lightning SUBCOMMAND [options]

Federated learning that shows what a model forgets.

subcommands:
{}

options:
{}

A first run: fl-lightning fit --config digits_wsm.yaml"""
_OPTIONS = {"--help": "show this overview; after a subcommand, its options", "--version": "show the version"}


def main(args: Sequence[str] | None = None, imported: Callable[[], None] = lambda: None) -> int:
    """Entry point of ``fl-lightning``; returns the exit code.

    An error is one line on standard error; ``FL_LIGHTNING_TRACEBACK=1`` shows its origin.

    Args:
        args: the command line without the program; by default that of this process.
        imported: called when torch and Lightning are imported and the command begins.
    """
    quiet_lightning()
    threading.excepthook = _say_thread_failed
    arguments = list(sys.argv[1:] if args is None else args)
    try:
        answer = quick_answer(arguments)
        given = _given(arguments) if answer is None else {}
    except (ValueError, OSError) as error:
        return _refuse(str(error))
    if answer is not None:
        print(answer)
        return 0
    try:
        sys.path.append(os.getcwd())  # so that `--model my_method.MyMethod` finds my_method.py in the working folder
        run = _imported(arguments[0], arguments[1:], given)
        warnings.formatwarning = _one_line  # Lightning sets one of its own as it is imported
        imported()
        run()
    except KeyboardInterrupt:
        print("fl-lightning: stopped", file=sys.stderr)
        return 128 + signal.SIGINT
    except Exception as error:
        if isinstance(error, BrokenPipeError) and is_closed():
            raise
        return _end(error, arguments)
    return 0


def _given(arguments: Sequence[str]) -> dict[str, Any]:
    """The arguments of a command that is a function; a request for its help ends here."""
    if arguments[0] not in COMMANDS:
        return {}
    from fl_lightning.command_line.parsers import arguments_of

    return arguments_of(COMMANDS[arguments[0]], arguments[1:])


def _imported(name: str, options: Sequence[str], given: dict[str, Any]) -> Callable[[], None]:
    """A command, with its slow imports."""
    if name in COMMANDS:
        import_module("fl_lightning.callbacks")
        return partial(COMMANDS[name], **given)
    if name in ("attack", "bench", "sweep"):
        return partial(import_module(f"fl_lightning.command_line.{name}").run, options)
    return partial(import_module("fl_lightning.command_line.trainer_command").run, name, options)


def _end(error: Exception, arguments: Sequence[str]) -> int:
    from fl_lightning.command_line.errors import error_line
    from fl_lightning.processes.torchrun_store import tell_failure

    line = error_line(error, arguments)
    if os.environ.get("FL_LIGHTNING_TRACEBACK"):
        traceback.print_exception(error)
    else:
        _refuse(line)
    tell_failure(line)
    return 1


def _refuse(line: str) -> int:
    print(f"fl-lightning: error: {line}", file=sys.stderr)
    return 1


def _say_thread_failed(failed: threading.ExceptHookArgs) -> None:
    """Report an error as Python does, except in TensorBoard's writing thread: the main thread reports that one."""
    if not type(failed.thread).__module__.startswith("tensorboard."):
        threading.__excepthook__(failed)


def _one_line(message: Warning | str, *_: Any, **__: Any) -> str:
    """A warning without its line of code."""
    return f"fl-lightning: warning: {message}\n"


def quick_answer(arguments: Sequence[str]) -> str | None:
    """The answer to a command line that does not need torch; None if a subcommand must run.

    Raises:
        ValueError: naming all subcommands, if the first word is not one of them; if configs gets several names.
        FileNotFoundError: if configs gets the name of no config.
    """
    first, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if first in ("--help", "-h"):
        return _overview()
    if first == "--version":
        return f"fl-lightning {__version__}"
    if first == "configs":
        return _configs(rest)
    if first not in SUBCOMMANDS:
        raise ValueError(_no_subcommand(first, rest))
    return None


def _overview() -> str:
    width = max(map(len, SUBCOMMANDS))
    lists = ("\n".join(f"  {name:{width}}  {what}" for name, what in of.items()) for of in (SUBCOMMANDS, _OPTIONS))
    return _OVERVIEW.format(*lists)


def _configs(rest: Sequence[str]) -> str:
    if not rest:
        return describe_configs()
    if rest[0] in ("--help", "-h"):
        return "usage: fl-lightning configs [NAME]\n\nList the bundled configs, which --config takes by name, or print one."
    if len(rest) > 1:
        raise ValueError(f"configs takes one name, but {' '.join(rest)} is given: ask for one after the other")
    return config_text(rest[0])


def _no_subcommand(first: str, rest: Sequence[str]) -> str:
    names = ", ".join(SUBCOMMANDS)
    if first.startswith("-"):
        return f"{first} is given where the subcommand must be: give one of {names} first, as in fl-lightning fit {first}"
    cure = did_you_mean(first, SUBCOMMANDS, otherwise="fl-lightning --help says what each does")
    return f"subcommand is {first}, must be one of {names}: {cure}"
