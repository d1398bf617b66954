"""Flower's programs on this machine: a SuperLink, SuperNodes, the processes of sites, and runs.

``flwr`` and the processes of apps are forked: :mod:`forked_apps`. The others are new interpreters.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

from fork_server import start

_PROGRAMS = Path(sys.executable).parent


class Loopback:
    """Processes of a federation, with their logs in a folder.

    Args:
        folder: a short path, as the system limits the path of a socket.
        apps: folder of :func:`forked_apps.forked_apps`.
        options: of the SuperLink.
    """

    def __init__(self, folder: Path, apps: Path, *options: str) -> None:
        self.folder, self._processes = folder, dict[str, subprocess.Popen[bytes]]()
        self.sites: dict[int, BaseProcess] = {}  # by client
        self.port = free_port()
        self.environment = {**os.environ, "FLWR_HOME": str(folder / "flower"), "FLWR_TELEMETRY_ENABLED": "0"}
        self.environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.3"  # seconds; 1 by default
        self.environment["PATH"] = f"{apps}:{_PROGRAMS}:{os.environ['PATH']}"
        (folder / "flower").mkdir(parents=True)
        self.connect("insecure = true")
        link = ["flower-superlink", "--port", str(self.port), "--disable-runtime-dependency-installation"]
        self.start("link", *link, *(options or ["--insecure"]))

    def connect(self, *lines: str) -> None:
        """Tell ``flwr`` how to reach the SuperLink."""
        head = ["[superlink]", 'default = "here"', "[superlink.here]", f'address = "127.0.0.1:{self.port}"']
        (self.folder / "flower" / "config.toml").write_text("\n".join([*head, *lines, ""]))

    def wait(self) -> None:
        """Until the SuperLink answers."""
        self.wait_for("link", "Uvicorn running")

    def node(self, client: int, *options: str) -> None:
        """Start the SuperNode of a site."""
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())]
        site = f'site="{self.site(client)}"'
        self.start(f"node{client}", *command, "--node-config", site, *(options or ["--insecure"]))

    def site(self, client: int) -> Path:
        """The folder of a site."""
        return self.folder / "sites" / str(client)

    def start_sites(self, app: Path, clients: Iterable[int], options: Mapping[int, Sequence[str]] = {}) -> None:
        """Start the processes of sites, with further options by client, and wait until all of them serve."""
        for client in (clients := [*clients]):
            folder = self.site(client)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "site.socket").unlink(missing_ok=True)  # of a process that was killed
            command = "federation", "site", str(app), "--client", str(client), "--site", str(folder)
            self.sites[client] = start(folder, *command, *options.get(client, ()))
        for client in clients:
            wait_until((self.site(client) / "site.socket").exists, f"the site of client {client} does not serve", 240)

    def end_site(self, client: int) -> None:
        """Kill the process of a site."""
        process = self.sites.pop(client)
        process.kill()
        process.join()

    def end_sites(self) -> None:
        """End the processes of all sites, and remove their folders."""
        for client in list(self.sites):
            self.end_site(client)
        shutil.rmtree(self.folder / "sites", ignore_errors=True)

    def run(self, app: Path, *settings: str, timeout: float = 300) -> str:
        """Run an app until it ends; returns what it printed."""
        self.begin(app, *settings)
        return self.finish(timeout)

    def flwr(self, *arguments: str, timeout: float = 60) -> str:
        """Run a command of Flower's to its end; returns what it printed."""
        command = ["flwr", *arguments]
        ended = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, timeout=timeout)
        return (ended.stdout + ended.stderr).decode()

    def begin(self, app: Path, *settings: str) -> None:
        """Run an app as the process ``run``."""
        (self.folder / "run.log").unlink(missing_ok=True)
        self.start("run", "flwr", "run", str(app), "--stream", *_given(settings))

    def kill_server(self) -> None:
        """End the process of the ServerApp at once, not the SuperLink that started it."""
        here, found = f":{self.port}".encode(), list[int]()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                line = (folder / "cmdline").read_bytes()
                if b"flwr-serverapp" in line and here in line:
                    found.append(int(folder.name))
        assert found
        for number in found:
            os.kill(number, signal.SIGKILL)

    def log(self, name: str) -> str:
        """What a process has printed."""
        return (self.folder / f"{name}.log").read_text()

    def wait_for(self, name: str, words: str, timeout: float = 120) -> None:
        """Until a process has printed some words."""
        wait_until(lambda: words in self.log(name), f"{name} did not print {words!r}", timeout)

    def finish(self, timeout: float = 300) -> str:
        """Wait until the run has ended; returns what it printed."""
        self._processes.pop("run").wait(timeout)
        return self.log("run")

    def kill(self, name: str) -> None:
        """End a process and those that it started, at once."""
        process = self._processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """End all processes."""
        self.end_sites()
        for name in list(self._processes):
            self.kill(name)

    def start(self, name: str, *command: str) -> None:
        """Start a process, in the folder."""
        with open(self.folder / f"{name}.log", "ab") as log:
            self._processes[name] = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )


def _given(settings: tuple[str, ...]) -> list[str]:
    return [part for setting in settings for part in ("--run-config", setting)]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_until(true: Callable[[], bool], otherwise: str, timeout: float) -> None:
    end = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < end, otherwise
        time.sleep(0.2)
