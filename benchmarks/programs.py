"""The driver's side of the protocol: benchmarked programs, each in a separate process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch

from benchmarks.protocol import Weights

ROOT = Path(__file__).parent.parent
_PATIENCE = 30  # seconds for a program to end by itself
PROGRAMS = {
    "reference": "benchmarks.reference_loop",
    "ours": "benchmarks.fl_lightning_program",
    "ours, sequential": "benchmarks.fl_lightning_program --engine sequential",
    "ours, vectorized": "benchmarks.fl_lightning_program --engine vectorized",
    "ours, captured": "benchmarks.fl_lightning_program --engine captured",
    "trainer per client": "benchmarks.trainer_per_client",
    "pfl": "benchmarks.pfl_program",
    "flower": "benchmarks.flower_program",
    "matmul": "benchmarks.matmul",
}


class ProgramFailed(RuntimeError):
    """A program ended where it should have answered; the message is what it wrote last."""


def environment(threads: int) -> dict[str, str]:
    """This process's variables with as many threads for every library and the C library's default allocator settings."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    return {**variables, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


class Program:
    """A running program, which waits between its rounds; ``command`` is a module with options."""

    def __init__(self, command: str, workload: str, threads: int) -> None:
        self._log = TemporaryFile("w+")  # noqa: SIM115  (open as long as the program)
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command.split(), "--workload", workload, "--threads", str(threads)],
            cwd=ROOT,
            env=environment(threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def wait_until_ready(self) -> None:
        """Return once the program has said that it can play rounds."""
        self._answer()

    def play_round(self) -> dict[str, Any]:
        """One round; ``seconds`` and what else the program measures."""
        return self._ask("go")

    def weights(self, path: Path) -> Weights:
        """The global weights, by way of a file at ``path``."""
        self._ask(f"save {path}")
        return torch.load(path)

    def quit(self) -> float:
        """End the program; the most memory that it held, MiB."""
        peak = self._ask("quit")["peak_memory_mib"]
        self._process.wait()
        return peak

    def close(self) -> None:
        """Have it end, if it still runs: at its next look at stdin, or else by force."""
        try:
            self._process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _ask(self, request: str) -> dict[str, Any]:
        with suppress(BrokenPipeError):  # where it has ended, _answer says of what
            print(request, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._log.seek(0)
        raise ProgramFailed(" / ".join(self._log.read().strip().splitlines()[-2:]) or "it wrote nothing")


@contextmanager
def running(commands: dict[str, str], workload: str | Sequence[str], threads: int) -> Iterator[dict[str, Program]]:
    """Programs by name, started one after another.

    Args:
        commands: by name, as in ``PROGRAMS``.
        workload: of all, or one for each.
        threads: of every process.
    """
    workloads = [workload] * len(commands) if isinstance(workload, str) else workload
    programs: dict[str, Program] = {}
    try:
        for (name, command), its_workload in zip(commands.items(), workloads, strict=True):
            programs[name] = Program(command, its_workload, threads)
            try:
                programs[name].wait_until_ready()
            except ProgramFailed as failure:
                print(f"left out: {name} on {its_workload}: {failure}", file=sys.stderr)
                programs.pop(name).close()
        yield programs
    finally:
        for program in programs.values():
            program.close()


def interleave(programs: dict[str, Program], rounds: int, turn: int = 1) -> dict[str, list[dict[str, Any]]]:
    """Rounds of all programs in turn, A B C A B C; what each round measured, by program.

    Args:
        rounds: of each program.
        turn: rounds in a row. A single round of milliseconds would measure caches that the others have filled.
    """
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in programs}
    for first in range(0, rounds, turn):
        for name, program in programs.items():
            samples[name] += [program.play_round() for _ in range(min(turn, rounds - first))]
    return samples
