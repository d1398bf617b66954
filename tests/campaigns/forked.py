"""``fl-lightning`` as a real process that a server forks, which has imported everything once.

A separate module: the forked process imports it by name, which it cannot do with a conftest.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
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
    return _start(arguments, folder, folder / "log.txt", folder / "log.txt", dict(os.environ))


class CommandLine:
    """``fl-lightning`` in a folder, with what tests ask of a ``subprocess.Popen``.

    Args:
        arguments: of the command line.
        folder: in which it runs; its output lies in ``out``, in separate files.
        environment: all of it.
    """

    def __init__(self, arguments: Sequence[str], folder: Path, out: Path, environment: Mapping[str, str]) -> None:
        self._arguments, self._files = arguments, [out.with_suffix(kind) for kind in (".out", ".err")]
        self._process = _start(arguments, folder, *self._files, dict(environment))
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    poll = returncode.fget

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit code.

        Raises:
            subprocess.TimeoutExpired: if it does not end in time.
        """
        self._process.join(timeout)
        if self._process.is_alive():
            raise subprocess.TimeoutExpired(list(self._arguments), timeout or 0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Standard output and standard error, once it has ended."""
        self.wait(timeout)
        out, error = (path.read_text() for path in self._files)
        return out, error


def _start(arguments: Sequence[str], folder: Path, out: Path, error: Path, environment: dict[str, str]) -> BaseProcess:
    process = _SERVER.Process(target=_main, args=(list(arguments), str(folder), (str(out), str(error)), environment))
    process.start()
    return process


def _main(arguments: list[str], folder: str, outputs: tuple[str, str], environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream, path in zip((sys.stdout, sys.stderr), outputs, strict=True):
        with open(path, "a") as file:
            os.dup2(file.fileno(), stream.fileno())
    sys.argv = ["fl-lightning", *arguments]
    from fl_lightning.command_line.cli import main

    sys.exit(main(arguments))
