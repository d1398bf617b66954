"""The door of ``fl-lightning``: answers what needs no torch, and imports the rest, which takes seconds, only then."""

import gc
import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Entry point of ``fl-lightning`` and ``python -m fl_lightning``; returns the exit code."""
    if ends_on_ctrl_c := signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # in a background job it does not
        signal.signal(signal.SIGINT, _stop)
    gc.disable()  # imports make many objects and hardly any garbage
    from fl_lightning.command_line import cli
    from fl_lightning.command_line.closed_output import ending_quietly

    def imported() -> None:
        gc.freeze()
        gc.enable()
        if ends_on_ctrl_c:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    try:
        return ending_quietly(lambda: cli.main(imported=imported))
    finally:
        gc.unfreeze()  # what is frozen when the process ends is not freed, and triton reports it as leaked


def _stop(number: int, frame: FrameType | None) -> None:
    """End at once: an exception would surface in the midst of an import, whose code may swallow it or print a traceback."""
    os.write(sys.stderr.fileno(), b"fl-lightning: stopped before it began\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
