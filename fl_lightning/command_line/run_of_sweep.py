"""One run of a sweep: ``fl-lightning`` as usual, but it always ends with the sweep."""

import os
import signal
import sys
import threading


def end_with_the_sweep() -> None:
    """Wait until the pipe at standard input closes, as it does when the sweep is gone, even after kill -9."""
    os.read(sys.stdin.fileno(), 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)  # also the processes that this run started; checkpoints are always complete


if __name__ == "__main__":
    # In a thread, as the pipe's end shows only in a wait. Before the slow imports, as a sweep can end during these too.
    threading.Thread(target=end_with_the_sweep, daemon=True).start()
    from fl_lightning.command_line.cli import main

    sys.exit(main())
