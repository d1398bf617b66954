"""``fl-lightning`` as a real process that a server forks, which has imported everything once.

In a module of its own: the forked process imports it by name, which it cannot do with a conftest.
"""

import multiprocessing
import os
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        *("fl_lightning.command_line.cli", "fl_lightning.methods", "fl_lightning.continual", "fl_lightning.privacy"),
        *("opacus", "sklearn.datasets"),  # which the package imports where it uses them
    ]
)


def start(folder: Path, *arguments: str) -> BaseProcess:
    """Start ``fl-lightning`` in a folder; standard output and error are added to ``log.txt`` there."""
    folder.mkdir(exist_ok=True)
    (folder / "log.txt").touch()
    process = _SERVER.Process(target=_main, args=(list(arguments), str(folder)))
    process.start()
    return process


def _main(arguments: list[str], folder: str) -> None:
    os.chdir(folder)
    with open("log.txt", "a") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    sys.argv = ["fl-lightning"]
    from fl_lightning.command_line.cli import main

    sys.exit(main(arguments))
