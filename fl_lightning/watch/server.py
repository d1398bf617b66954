"""The server of the page: on the loopback address, for browsers of this machine alone, and reading alone."""

import json
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from fl_lightning.watch.heatmaps import heatmap
from fl_lightning.watch.watched_runs import WatchedRuns, numbers

LOOPBACK = "127.0.0.1"
_NAMES = ("127.0.0.1", "localhost", "::1")  # by which a browser of this machine, or a tunnel to it, calls the loopback address
_FILES = {"/": ("page.html", "text/html"), "/page.css": ("page.css", "text/css"), "/page.js": ("page.js", "text/javascript")}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_PAUSE, _SHARE = 1.0, 4  # seconds between two looks at the files, and at least so many times what a look took


class LiveServer(ThreadingHTTPServer):
    """Serves the page of some runs on the loopback address.

    A thread reads the files, and only while a page asks, so that no answer waits for a long log.

    Args:
        runs: what the page shows.
        port: 0 for any that is free; `address` has it.

    Raises:
        OSError: if the port cannot be taken.
    """

    daemon_threads = True

    def __init__(self, runs: WatchedRuns, port: int) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.runs, self.asked = runs, threading.Event()
        threading.Thread(target=_keep_reading, args=(runs, self.asked), name="read-runs", daemon=True).start()

    @property
    def address(self) -> str:
        """Of the page, for a browser."""
        return f"http://{LOOPBACK}:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that leaves in the midst of an answer is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _keep_reading(runs: WatchedRuns, asked: threading.Event) -> None:
    while True:
        asked.wait()
        asked.clear()
        began = time.monotonic()
        runs.refresh()
        time.sleep(max(_PAUSE, _SHARE * (time.monotonic() - began)))


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "fl-lightning", ""

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if not _is_local(self.headers.get("Host", "")):
            # A name that another site has led here (DNS rebinding) would let its pages read the runs.
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"This page is for browsers of this machine: call it localhost\n")
        elif address.path in _FILES:
            name, kind = _FILES[address.path]
            self._answer(HTTPStatus.OK, kind, (files("fl_lightning.watch") / name).read_bytes())
        elif address.path == "/runs.json":
            self.server.asked.set()
            self._answer_json(self.server.runs.overview())
        elif address.path == "/heatmap.json":
            self._answer_heatmap(dict(parse_qsl(address.query)))
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"There is no such page\n")

    def _answer_heatmap(self, asked: dict[str, str]) -> None:
        try:
            shown = heatmap(self.server.runs.run(asked["run"]), asked["kind"], int(asked["round"]))
        except (KeyError, ValueError):
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"There is no such heatmap\n")
        else:
            self._answer_json(vars(shown) | {"values": numbers(shown.values)})

    def _answer_json(self, value: dict[str, Any]) -> None:
        self._answer(HTTPStatus.OK, "application/json", json.dumps(value, separators=(",", ":")).encode())

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in (_HEADERS | {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: every page asks every other second."""


def _is_local(host: str) -> bool:
    """Whether a Host header names the loopback address, with any port: a tunnel may have another."""
    try:
        return urlsplit(f"//{host}").hostname in _NAMES
    except ValueError:
        return False
