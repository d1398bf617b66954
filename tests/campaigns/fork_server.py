"""``fl-lightning`` as real processes that a server forks, which has imported everything once.

A separate module: the forked process imports it by name, which it cannot do with a conftest.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO
from unittest import mock

_PROGRAM = "fl_lightning"
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        "no_garbage_yet",
        *(
            "fl_lightning.command_line.cli",
            "fl_lightning.command_line.trainer_command",
            "fl_lightning.command_line.sweep",
            "fl_lightning.methods",
            "fl_lightning.tasks",
            "fl_lightning.privacy",
        ),
        *("opacus", "sklearn.datasets", "sklearn.model_selection", "optuna"),  # imported where they are used
        "first_use",
    ]
)


def fork(target: Callable[..., object], *arguments: object) -> BaseProcess:
    """Call a function, which is found by its name, in a fork of the server."""
    process = _SERVER.Process(target=target, args=arguments)
    with mock.patch.dict(os.environ, PYTHONPATH=str(Path(__file__).parent)):  # the first call starts the server
        process.start()
    return process


def start(folder: Path, *arguments: str) -> BaseProcess:
    """Start ``fl-lightning`` in a folder; standard output and error are added to ``log.txt`` there."""
    folder.mkdir(exist_ok=True)
    (folder / "log.txt").touch()
    return _start(arguments, folder, folder / "log.txt", folder / "log.txt", dict(os.environ))


class CommandLine:
    """``fl-lightning`` in a folder, with what tests ask of a ``subprocess.Popen``.

    Lightning's launcher starts the other processes of ``--trainer.devices`` from forks too, a sweep its runs and torchrun its
    workers.

    Args:
        arguments: of the command line.
        folder: in which it runs; its output lies in ``out``, in separate files.
        environment: all of it.
        torchrun: torchrun's options, where it starts the command line.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        out: Path,
        environment: Mapping[str, str],
        torchrun: Sequence[str] | None = None,
    ) -> None:
        self._arguments, self._files = arguments, [out.with_suffix(kind) for kind in (".out", ".err")]
        if torchrun is None:
            self._process = _start(arguments, folder, *self._files, dict(environment))
        else:
            given = str(folder), tuple(map(str, self._files)), dict(environment)
            self._process = fork(_torchrun, [*torchrun, "-m", _PROGRAM, *arguments], *given)
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


class SweepRun:
    """A run of a sweep, with what the sweep's worker asks of a ``subprocess.Popen``.

    Args:
        command: what the worker would start.
        stdin: a pipe, whatever it says: the run ends when this process has.
        stdout: the file of the run's output.
        stderr: goes there too.
        env: all of the environment.
        start_new_session: what it does in any case.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: TextIO,
        stderr: int,
        env: Mapping[str, str],
        start_new_session: bool,
    ) -> None:
        reader, self._writer = multiprocessing.Pipe(duplex=False)
        arguments = list(command[command.index("fit") :])
        given = (arguments, os.getcwd(), stdout.name, dict(env), reader)
        self._process = fork(_run_of_sweep, *given)
        reader.close()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    poll = returncode.fget


class Worker:
    """A process that torchrun starts, with what it asks of a ``subprocess.Popen``."""

    def __init__(
        self, args: Sequence[str], env: Mapping[str, str], stdout: None, stderr: None, start_new_session: bool
    ) -> None:
        outputs = tuple(os.readlink(f"/proc/self/fd/{stream.fileno()}") for stream in (sys.stdout, sys.stderr))
        arguments = list(args[args.index(_PROGRAM) + 1 :])
        self._process = fork(_worker, arguments, os.getcwd(), outputs, dict(env))
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self.poll()


# In the place of the worker's subprocess: sweeps fork their runs.
FORKED_RUNS = SimpleNamespace(Popen=SweepRun, PIPE=subprocess.PIPE, STDOUT=subprocess.STDOUT)


def _start(arguments: Sequence[str], folder: Path, out: Path, error: Path, environment: dict[str, str]) -> BaseProcess:
    return fork(_main, list(arguments), str(folder), (str(out), str(error)), environment)


def _main(arguments: list[str], folder: str, outputs: tuple[str, str], environment: dict[str, str]) -> None:
    _write_to(folder, outputs)
    if "--trainer.devices" in arguments:
        _fork_for_launcher(int(arguments[arguments.index("--trainer.devices") + 1]) - 1)
    if arguments[0] == "sweep":
        from fl_lightning.sweep import worker

        worker.subprocess = FORKED_RUNS
    _run(arguments, environment)


def _write_to(folder: str, outputs: tuple[str, str]) -> None:
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream, path in zip((sys.stdout, sys.stderr), outputs, strict=True):
        with open(path, "a") as file:
            os.dup2(file.fileno(), stream.fileno())


def _torchrun(arguments: list[str], folder: str, outputs: tuple[str, str], environment: dict[str, str]) -> None:
    _write_to(folder, outputs)
    os.environ.clear()
    os.environ.update(environment)
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    subprocess_handler.Popen = Worker
    run.main(arguments)


def _worker(arguments: list[str], folder: str, outputs: tuple[str, str], environment: dict[str, str]) -> None:
    os.setsid()
    _write_to(folder, outputs)
    _run(arguments, environment)


def _run_of_sweep(arguments: list[str], folder: str, output: str, environment: dict[str, str], sweep: Connection) -> None:
    os.setsid()
    os.chdir(folder)
    os.dup2(sweep.fileno(), sys.stdin.fileno())
    with open(output, "a") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    from fl_lightning.command_line.run_of_sweep import end_with_the_sweep

    threading.Thread(target=end_with_the_sweep, daemon=True).start()
    _run(arguments, environment)


def _run(arguments: list[str], environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["fl-lightning", *arguments]
    from fl_lightning.command_line.cli import main

    sys.exit(main(arguments))


def _fork_for_launcher(num_others: int) -> None:
    """Have Lightning's launcher start forks of this process as it is now, in place of new interpreters."""
    from lightning.pytorch.strategies.launchers import subprocess_script

    forks = [_Fork() for _ in range(num_others)]
    subprocess_script.subprocess = SimpleNamespace(Popen=lambda command, env, cwd: forks.pop(0).start(env))


class _Fork:
    """A child that waits to be given its environment, with what Lightning's launcher asks of a ``subprocess.Popen``."""

    returncode: int | None = None

    def __init__(self) -> None:
        reader, self._writer = multiprocessing.Pipe(duplex=False)
        self.pid = os.fork()
        if self.pid == 0:
            self._writer.close()
            try:
                given = reader.recv()
            except EOFError:  # the parent has ended without it
                sys.exit(0)
            _run(*given)
        reader.close()

    def start(self, environment: dict[str, Any]) -> "_Fork":
        self._writer.send((sys.argv[1:], environment))
        return self

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)
