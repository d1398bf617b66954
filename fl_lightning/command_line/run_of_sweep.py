"""One run of a sweep: ``fl-lightning`` as ever, but it does not outlive the sweep, however that ends."""

import os
import signal
import sys
import threading


def end_with_the_sweep() -> None:
    """Wait until the pipe at standard input closes, as it does when the sweep is gone, kill -9 included."""
    os.read(sys.stdin.fileno(), 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)  # and what this run started; checkpoints are whole at any time


if __name__ == "__main__":
    # A thread, as only waiting sees the pipe's end. Before the slow imports, which a sweep may not survive either.
    threading.Thread(target=end_with_the_sweep, daemon=True).start()
    from fl_lightning.command_line.cli import main

    sys.exit(main())
