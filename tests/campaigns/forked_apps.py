"""The processes of Flower and of its apps, forked from one that has imported Flower and fl-lightning once.

Flower starts a program for every message and every run. The imports of each take seconds, the app itself less. A SuperNode that
has nothing to do asks for a message every 3 s; here it asks ten times as often.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

from fork_server import fork
from loopback import wait_until

PROGRAMS = ("flwr", "flwr-clientapp", "flwr-serverapp", "flower-superexec", "flower-supernode")
# Flower finds this under the program's name. It lives as long as the fork, which ends with it.
_STAND_IN = """\
#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
    link.connect({path!r})
    socket.send_fds(link, [json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode()], [1, 2])
    link.recv(1)
"""
_LONGEST = 1 << 17  # bytes of a command line and its environment


def forked_apps(folder: Path) -> BaseProcess:
    """Write programs into a folder, to be put in front of ``PATH``, and start the process that forks them.

    Returns once that process listens, because a program that cannot reach it ends at once.
    """
    folder.mkdir()
    path = str(folder / "socket")
    process = fork(_serve, path)
    for name in PROGRAMS:
        (folder / name).write_text(_STAND_IN.format(python=sys.executable, path=path))
        (folder / name).chmod(0o755)
    wait_until(Path(path).exists, "the programs are not ready to be forked", 120)
    return process


def _serve(path: str) -> None:
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # read when Flower is imported
    from flwr.cli.app import app
    from flwr.supercore.cli import flower_superexec
    from flwr.superlink.cli import flwr_serverapp
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode, flwr_clientapp

    import fl_lightning.command_line.server_app
    import fl_lightning.sites.client_app  # noqa: F401

    programs = app, flwr_clientapp, flwr_serverapp, flower_superexec, flower_supernode
    mains = dict(zip(PROGRAMS, programs, strict=True))
    start_client_internal.time = SimpleNamespace(sleep=lambda seconds: time.sleep(seconds / 10))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{path}.new")
        listener.listen()
        os.rename(f"{path}.new", path)
        while True:
            link, _ = listener.accept()
            given, streams, _, _ = socket.recv_fds(link, _LONGEST, 2)
            if os.fork() == 0:
                listener.close()
                _become(link, streams, *json.loads(given))
                try:
                    mains[Path(sys.argv[0]).name]()
                finally:  # as an interpreter that ends, but for what the server has registered for its own end
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(0)
            for stream in (link.fileno(), *streams):
                os.close(stream)
            link.detach()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _become(link: socket.socket, streams: list[int], arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    os.setsid()  # what it starts is of its group, and ends with it
    sys.argv = arguments
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
        os.close(stream)
    threading.Thread(target=_end_with, args=(link,), daemon=True).start()


def _end_with(link: socket.socket) -> None:
    link.recv(1)
    os.killpg(0, signal.SIGKILL)
