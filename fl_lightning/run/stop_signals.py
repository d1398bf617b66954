"""A process that is asked to stop does so in time, whatever it is computing."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def ends_on_signals(grace: float, hear: Callable[[signal.Signals], None], say: Callable[[], None]) -> Iterator[None]:
    """Within the block, SIGTERM or Ctrl-C ends the process, with exit code 143 or 130, even if its handler does not run.

    Lightning's handler of SIGTERM waits for the end of a round, and Python runs handlers only in the main thread, which can
    hang in a library. The interpreter therefore reports every signal with a handler to a second thread. This thread ends the
    process if the block is still running after a grace period, or at once at a second signal. Only the main thread receives
    signals; in another one the block does nothing.

    Args:
        grace: seconds.
        hear: called with the first signal as it comes, in the thread.
        say: called before the thread ends the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    previous = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_end_in_time, args=(reading, grace, hear, say), name="stop-signals", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        writing.close()


def _end_in_time(reading: socket.socket, grace: float, hear: Callable[[signal.Signals], None], say: Callable[[], None]) -> None:
    with reading:
        first = _next_signal(reading)
        if first is None:
            return
        hear(first)
        reading.settimeout(grace)
        with suppress(TimeoutError):
            if _next_signal(reading) is None:
                return
        say()
        os._exit(128 + first)


def _next_signal(reading: socket.socket) -> signal.Signals | None:
    """The next signal that stops a process; None after the end of the block."""
    while byte := reading.recv(1):
        if byte[0] in _SIGNALS:
            return signal.Signals(byte[0])
    return None
