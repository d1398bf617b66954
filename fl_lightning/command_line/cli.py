"""The command line: ``fl-lightning fit --config digits_tce.yaml``. An error is one line, and the exit code says so."""

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from fl_lightning.command_line.closed_output import ending_quietly, is_closed
from fl_lightning.command_line.config_files import whole_configs
from fl_lightning.command_line.federated_cli import FederatedCLI, run_cli
from fl_lightning.command_line.one_line_errors import error_line
from fl_lightning.command_line.subcommands import quick_answer
from fl_lightning.training.torchrun_store import tell_failure

# Commands that are not a trainer's: each module's ``run`` takes the arguments. Imported where asked for.
COMMANDS = {
    "attack": "fl_lightning.command_line.attack",
    "compare": "fl_lightning.command_line.compare",
    "completion": "fl_lightning.command_line.completion",
    "export": "fl_lightning.command_line.export",
    "figures": "fl_lightning.command_line.figures",
    "report": "fl_lightning.command_line.report",
    "sweep": "fl_lightning.command_line.sweep",
    "watch": "fl_lightning.command_line.watch",
}


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of ``fl-lightning``; returns the exit code.

    An error is one line on standard error; ``FL_LIGHTNING_TRACEBACK=1`` shows where it came from.
    """
    _quiet_lightning()
    warnings.formatwarning = _one_line
    threading.excepthook = _say_thread_failed
    sys.path.append(os.getcwd())  # so that `--model my_method.MyMethod` finds my_method.py in the working folder
    try:
        arguments = _split_config_option(sys.argv[1:] if args is None else args)
        if (answer := quick_answer(arguments)) is not None:
            print(answer)
        elif arguments[0] in COMMANDS:
            import_module(COMMANDS[arguments[0]]).run(arguments[1:])
        else:
            with whole_configs(arguments) as arguments:
                run_cli(arguments, FederatedCLI)
    except KeyboardInterrupt:
        print("fl-lightning: stopped", file=sys.stderr)
        return 128 + signal.SIGINT
    except Exception as error:
        if os.environ.get("FL_LIGHTNING_TRACEBACK") or (isinstance(error, BrokenPipeError) and is_closed()):
            raise
        line = error_line(error)
        print(f"fl-lightning: error: {line}", file=sys.stderr)
        tell_failure(line)
        return 1
    return 0


def _split_config_option(arguments: Sequence[str]) -> list[str]:
    """``--config=X`` as two arguments."""
    return [
        part for argument in arguments for part in (argument.split("=", 1) if argument.startswith("--config=") else [argument])
    ]


def _say_thread_failed(failed: threading.ExceptHookArgs) -> None:
    """As Python does, but for TensorBoard's thread that writes: its error reaches the main thread, which says it."""
    if not type(failed.thread).__module__.startswith("tensorboard."):
        threading.__excepthook__(failed)


def _one_line(message: Warning | str, *_: Any, **__: Any) -> str:
    """A warning without the line of code that gave it."""
    return f"fl-lightning: warning: {message}\n"


def _quiet_lightning() -> None:
    """Leave the screen to the progress bar and the errors."""
    warnings.filterwarnings("ignore", module="lightning")
    for name in (
        "pytorch.utilities.rank_zero",
        "fabric.utilities.seed",
        "fabric.utilities.distributed",
        "pytorch.accelerators",
        "pytorch.trainer.connectors.signal_connector",
    ):
        logging.getLogger(f"lightning.{name}").setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(ending_quietly(main))
