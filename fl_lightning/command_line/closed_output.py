"""Standard output whose reader ends early, as in ``fl-lightning configs | head -1``."""

import errno
import os
import signal
import sys
from collections.abc import Callable

_OF_THE_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # from a write, if no file is named


def ending_quietly(command: Callable[[], int]) -> int:
    """The exit code of a command; if its output is closed early, 141, as for a process that SIGPIPE ended.

    The rest of the output is written here, as its error would otherwise appear after the last line of the program.
    """
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"fl-lightning: error: {_reason(error)}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        return 128 + signal.SIGPIPE if isinstance(error, BrokenPipeError) else 1


def _reason(error: OSError) -> str:
    if error.filename is not None or error.errno not in _OF_THE_OUTPUT:
        return str(error)
    space = "" if error.errno == errno.EIO else "free some space or "
    return f"the standard output could not be written ({error.strerror}): {space}write elsewhere"


def is_closed() -> bool:
    """Whether the reader of standard output is gone."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return True
    return False
