"""``fl-lightning watch FOLDER``: a page of running and finished runs for a browser of this machine."""

import errno
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser

from fl_lightning.checks import check_range
from fl_lightning.command_line.one_line_errors import parse
from fl_lightning.command_line.plain_help import PlainFormatter
from fl_lightning.watch.server import LOOPBACK, LiveServer
from fl_lightning.watch.watched_runs import WatchedRuns

_PORT = 8642


def run(arguments: Sequence[str]) -> None:
    """Serve the page until Ctrl-C, and say where.

    Raises:
        FileNotFoundError: if the folder does not exist.
        ValueError: if no folder is given, or the port cannot be taken.
    """
    options = parse(_parser(), arguments)
    if options.folder is None:
        raise ValueError("FOLDER is missing: give that of a run, or of many, as in fl-lightning watch runs")
    if not Path(options.folder).is_dir():
        raise FileNotFoundError(f"FOLDER is {options.folder}, which is no folder: give that of a run, or of many, such as runs")
    check_range("--port", options.port, at_least=0, at_most=65535, hint="0 is any that is free")
    with _server(Path(options.folder), options.port) as server:
        print(f"Runs below {options.folder}: {server.address} (Ctrl-C ends the page, and no run)", flush=True)
        server.serve_forever()


def _server(folder: Path, port: int) -> LiveServer:
    try:
        return LiveServer(WatchedRuns(folder), port)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        why = "is in use" if error.errno == errno.EADDRINUSE else "is not open to you"
        raise ValueError(f"--port is {port}, which {why} on {LOOPBACK}: give another, or 0 for any that is free") from error


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="fl-lightning watch",
        description="Serve a page of running and finished runs on the loopback address, for browsers of this machine alone: "
        "curves, heatmaps over rounds, time left. It reads files, and may be stopped and started at any time.",
        formatter_class=PlainFormatter,
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="FOLDER", nargs="?", type=str, help="folder of a run, or of many at any depth")
    parser.add_argument("--port", type=int, default=_PORT, help="of the page; 0 is any that is free")
    return parser
