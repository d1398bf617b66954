"""What a round between real sites costs, next to a simulated one of the same work."""

import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measurements import Table
from benchmarks.programs import ProgramFailed, environment

_SITES = 4
_FASTER = 100  # times as many rounds of the simulation, which are below the noise of its start
_TRIES = 180  # seconds for the SuperLink to start
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: processes whose parent has ended become ours, and their time counts
_CONFIG = """\
model:
  class_path: SCAFFOLD
  init_args: {{net: MLP, local_steps: 3, engine: sequential}}
data: {{source: digits, num_clients: 4, clients_per_round: 4, batch_size: 16, val_fraction: 0.0}}
trainer: {{max_steps: {rounds}, val_check_interval: 1000, accelerator: cpu, enable_progress_bar: false}}
callbacks: {{client_forgetting: {{every: 0}}, label_counts: {{every: 0}}, per_class_accuracy: {{every: 0}}}}
"""

Run = Callable[[Path, dict[str, str]], None]


def flower(options: Namespace) -> Table:
    """Processor seconds of all processes for a round of four sites: those of a long run less those of one round."""
    more, samples, rows = options.rounds or 5, dict[str, list[float]](), []
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    with TemporaryDirectory(prefix="fed") as folder:  # a short path, for sockets
        for name, run, count in (("real sites", _real, more), ("simulation", _simulated, _FASTER * more)):
            samples[name] = [_spent(run, Path(folder, f"{run.__name__}_{n}"), n, options.threads) for n in (1, 1 + count)]
            first, long = samples[name]
            row = {"": name, "rounds": count, "CPU s a round": (long - first) / count}
            rows.append({**row, "CPU s of the first round and all starts": first})
    note = f"SCAFFOLD, MLP, digits, three local steps, {_SITES} of {_SITES} sites, all on this machine."
    return Table("A round between real sites", rows, [note], samples)


def _spent(run: Run, folder: Path, rounds: int, threads: int) -> float:
    """Processor seconds of all processes of a run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    (folder / "flower").mkdir(parents=True)
    (folder / "config.yaml").write_text(_CONFIG.format(rounds=rounds))
    variables = {**environment(threads), "FLWR_HOME": str(folder / "flower"), "FLWR_TELEMETRY_ENABLED": "0"}
    run(folder, {**variables, "PATH": f"{Path(sys.executable).parent}:{variables['PATH']}"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _simulated(folder: Path, variables: dict[str, str]) -> None:
    _to_the_end(folder, variables, "fl-lightning", "fit", "--config", "config.yaml")


def _real(folder: Path, variables: dict[str, str]) -> None:
    _to_the_end(folder, variables, "fl-lightning", "federation", "init", "app", "--config", "config.yaml")
    port, group = _free_port(), list[subprocess.Popen[bytes]]()

    def start(*command: str) -> None:
        nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        group.append(subprocess.Popen(command, cwd=folder, env=variables, start_new_session=True, **nowhere))

    lines = ["[superlink]", 'default = "here"', "[superlink.here]", f'address = "127.0.0.1:{port}"', "insecure = true", ""]
    (folder / "flower" / "config.toml").write_text("\n".join(lines))
    try:
        start("flower-superlink", "--insecure", "--port", str(port), "--disable-runtime-dependency-installation")
        for client in range(_SITES):
            start("fl-lightning", "federation", "site", "app", "--client", str(client), "--site", str(client))
            own = ["--port", str(_free_port()), "--node-config", f'site="{folder / str(client)}"']
            start("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", *own)
        _wait_for(port)
        _to_the_end(folder, variables, "flwr", "run", "app", "--stream")
    finally:
        for process in group:
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(ChildProcessError):
            while True:
                os.wait()
    if not any(folder.glob("runs/**/results.json")):
        raise ProgramFailed("the run between real sites has not ended well")


def _to_the_end(folder: Path, variables: dict[str, str], *command: str) -> None:
    ended = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    if ended.returncode != 0:
        raise ProgramFailed(f"{' '.join(command)}: {(ended.stderr or ended.stdout).strip()[-300:]}")


def _wait_for(port: int) -> None:
    """Until something listens."""
    end = time.monotonic() + _TRIES
    while True:
        with socket.socket() as link:
            if link.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > end:
            raise ProgramFailed(f"the SuperLink has not started within {_TRIES} s")
        time.sleep(0.5)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
