"""The server of the page: it listens on the loopback address, answers whoever has its token, and only reads."""

import json
import secrets
import socket
import sys
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from fl_lightning.report.safe_text import one_line
from fl_lightning.watch.heatmaps import heatmap
from fl_lightning.watch.watched_runs import WatchedRuns, numbers

LOOPBACK = "127.0.0.1"
_NAMES = ("127.0.0.1", "localhost", "::1")  # by which a browser of this machine, or a tunnel to it, calls the loopback address
# These hold nothing of runs. uPlot 1.6.32, by Leon Sorokin under the MIT licence in uPlot.LICENSE, is from its npm package.
_PARTS = {f"/{name}": (name, "text/css") for name in ("page.css", "uPlot.min.css")}
_PARTS |= {f"/{name}": (name, "text/javascript") for name in ("page.js", "uPlot.iife.min.js")}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_PAUSE, _SHARE = 1.0, 4  # seconds between two looks at the files, and at least so many times what a look took
_MOST_REQUESTS = 32  # at once, each in a thread; a browser makes six
_LONGEST_REQUEST = 30.0  # seconds


class LiveServer(ThreadingHTTPServer):
    """Serves the page of some runs on the loopback address, to requests with the token that `address` holds.

    A thread reads the files, and only while a page asks, so that no answer waits for a long log.

    Args:
        port: 0 for any that is free; `address` has it.

    Raises:
        OSError: if the port cannot be taken.
    """

    daemon_threads, request_queue_size = True, _MOST_REQUESTS

    def __init__(self, runs: WatchedRuns, port: int) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.runs, self.asked, self.token = runs, threading.Event(), secrets.token_urlsafe(24)
        self.ended: str | None = None  # why the thread that reads has ended
        self._deadlines: dict[socket.socket, float] = {}  # of the open connections, by the monotonic clock
        threading.Thread(target=self._keep_reading, name="read-runs", daemon=True).start()

    @property
    def address(self) -> str:
        """Of the page, for a browser: who has it can read the runs."""
        return f"http://{LOOPBACK}:{self.server_port}/?token={self.token}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own; a connection too many is closed."""
        if len(self._deadlines) >= _MOST_REQUESTS:
            self.shutdown_request(request)
            return
        self._deadlines[request] = time.monotonic() + _LONGEST_REQUEST
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Close connections that take too long, whether they are silent or send a byte now and then."""
        for request, deadline in tuple(self._deadlines.items()):
            if time.monotonic() > deadline:
                with suppress(OSError):  # it has just ended
                    request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser may leave during an answer, without an error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def _keep_reading(self) -> None:
        try:
            while True:
                self.asked.wait()
                self.asked.clear()
                began = time.monotonic()
                self.runs.refresh()
                time.sleep(max(_PAUSE, _SHARE * (time.monotonic() - began)))
        except BaseException as error:
            self.ended = f"{type(error).__name__}: {error}"
            raise


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "fl-lightning", ""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        asked = dict(parse_qsl(query))
        if not _is_local(self.headers.get("Host", "")):
            # A name that another site has led here (DNS rebinding) would let its pages read the runs.
            self._answer_text(HTTPStatus.FORBIDDEN, "This page is for browsers of this machine: call it localhost")
        elif path in _PARTS:
            self._answer_file(*_PARTS[path])
        elif not secrets.compare_digest(asked.get("token", "").encode(), self.server.token.encode()):
            self._answer_text(HTTPStatus.FORBIDDEN, "Open the address that fl-lightning watch has printed, with its token")
        elif path == "/":
            self._answer_file("page.html", "text/html")
        elif path == "/runs.json":
            self.server.asked.set()
            self._answer_json(self.server.runs.overview() | {"ended": self.server.ended})
        elif path == "/heatmap.json":
            self._answer_heatmap(asked)
        else:
            self._answer_text(HTTPStatus.NOT_FOUND, "There is no such page")

    def _answer_heatmap(self, asked: dict[str, str]) -> None:
        try:
            shown = heatmap(self.server.runs.run(asked["run"]), asked["kind"], int(asked["round"]))
        except (KeyError, ValueError):
            self._answer_text(HTTPStatus.NOT_FOUND, "There is no such heatmap")
        except Exception as error:  # whatever one run holds, the page goes on with the others
            said = one_line(f"It cannot be shown ({type(error).__name__}: {error})")
            self._answer_text(HTTPStatus.INTERNAL_SERVER_ERROR, said)
        else:
            self._answer_json(vars(shown) | {"values": numbers(shown.values)})

    def _answer_file(self, name: str, kind: str) -> None:
        self._answer(HTTPStatus.OK, kind, (files("fl_lightning.watch") / name).read_bytes())

    def _answer_text(self, status: HTTPStatus, text: str) -> None:
        self._answer(status, "text/plain", f"{text}\n".encode())

    def _answer_json(self, value: dict[str, Any]) -> None:
        self._answer(HTTPStatus.OK, "application/json", json.dumps(value, separators=(",", ":"), allow_nan=False).encode())

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
