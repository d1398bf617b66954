"""One run of a sweep: ``fl-lightning`` as usual, but it always ends with the sweep."""

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path


def end_with_the_sweep() -> None:
    """Wait until the pipe at standard input closes, as it does when the sweep is gone, even after kill -9."""
    os.read(sys.stdin.fileno(), 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)  # also the processes that this run started; checkpoints are always complete


def take_over_priority() -> None:
    """Give the run's session the niceness of its sweep: a Linux that groups processes by session compares these groups."""
    group, niceness = Path("/proc/self/autogroup"), os.nice(0)
    if niceness <= 0 or not os.access(group, os.W_OK):
        return
    for _ in range(20):
        with suppress(BlockingIOError):  # the system takes one such request in a tenth of a second: other runs start, too
            group.write_text(str(niceness))
            return
        time.sleep(0.1)


if __name__ == "__main__":
    # In a thread, as the pipe's end shows only in a wait. Before the slow imports, as a sweep can end during these too.
    threading.Thread(target=end_with_the_sweep, daemon=True).start()
    take_over_priority()
    from fl_lightning.command_line.cli import main

    sys.exit(main())
