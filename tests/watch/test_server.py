"""The server by real requests on the loopback address, and the command's refusals."""

import hashlib
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from urllib.parse import urlencode

import pytest

from fl_lightning.watch.heatmaps import KINDS
from fl_lightning.watch.server import LiveServer
from fl_lightning.watch.watched_runs import WatchedRuns


@pytest.fixture
def server(write_run, tmp_path) -> Iterator[LiveServer]:
    tensors = {
        "clients/cohort": {2: [3, 8]},
        "clients/accuracy_before": {2: [0.5, float("nan")]},
        "clients/accuracy_after": {2: [[0.75, 0.25], [0.5, 1.0]]},
    }
    write_run("a b/version_0", {"val/accuracy": {1: 0.5}}, tensors, rounds=9)
    with LiveServer(WatchedRuns(tmp_path / "runs"), 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def get(server) -> Callable[..., tuple[int, bytes, dict[str, str]]]:
    """Status, body and headers of an answer to a question with the token."""

    def ask(path: str, method: str = "GET", token: str = server.token, **headers: str):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        connection.request(method, f"{path}{'&' if '?' in path else '?'}token={token}", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())

    return ask


def overview(get: Callable) -> dict:
    """Once the files are read, which the first question asks for."""
    deadline = time.monotonic() + 20
    while not (told := json.loads(get("/runs.json")[1]))["is_read"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return told


def test_runs_and_heatmaps_are_given_as_json(get):
    """Before less after: 0.5 - 0.75 and 0.5 - 0.5, and nothing where the accuracy before is not known."""
    (run,) = overview(get)["runs"]
    question = urlencode({"run": run["name"], "kind": "forgetting", "round": run["measured"]["forgetting"][0]})
    status, body, _ = get(f"/heatmap.json?{question}")
    assert status == 200
    shown = {"rows": ["3", "8"], "columns": ["3", "8"], "values": [[-0.25, None], [0.0, None]], "clients": [3, 8]}
    assert json.loads(body) == shown


@pytest.mark.parametrize("path", ["/", "/page.css", "/page.js"])
def test_the_page_needs_nothing_of_the_internet(get, path):
    """Its policy lets it load from its server alone; no file names an address but that of the SVG standard."""
    status, body, headers = get(path)
    assert status == 200
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
    assert b"http" not in body.replace(b"http://www.w3.org/2000/svg", b"")
    assert b"//" not in body.replace(b"http://www.w3.org/2000/svg", b"") or path == "/page.js"  # its comments


@pytest.mark.parametrize(
    ("path", "digest"),
    [
        ("/uPlot.iife.min.js", "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"),
        ("/uPlot.min.css", "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"),
    ],
)
def test_uplot_is_that_of_its_package(get, path, digest):
    """SHA-256 of the files in the npm package uplot 1.6.32; its licence is next to them."""
    status, body, _ = get(path)
    assert (status, hashlib.sha256(body).hexdigest()) == (200, digest)
    assert "MIT" in (files("fl_lightning.watch") / "uPlot.LICENSE").read_text()


def test_the_page_is_told_what_every_kind_of_heatmap_is(get):
    kinds = overview(get)["kinds"]
    assert list(kinds) == list(KINDS)
    assert all(kind["title"] and kind["note"] and len(kind["axes"]) == 2 for kind in kinds.values())
    assert [name for name, kind in kinds.items() if kind["diverging"]] == ["forgetting"]


@pytest.mark.parametrize(
    "path", ["/x", "/../server.py", "/page.html", "/heatmap.json", "/heatmap.json?run=x&kind=forgetting&round=1", "/%00"]
)
def test_nothing_else_is_served(get, path):
    assert get(path)[0] == 404


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9000", "127.0.0.1", "[::1]:8642"])
def test_names_of_the_loopback_address_are_answered(get, host):
    assert get("/runs.json", Host=host)[0] == 200


@pytest.mark.parametrize(
    "host", ["", "evil.example", "localhost.evil.example:8642", "127.0.0.1.evil.example", "192.168.0.1", "[::1"]
)
@pytest.mark.parametrize("path", ["/", "/runs.json", "/heatmap.json"])
def test_other_names_are_refused(get, host, path):
    """A site may lead its name to 127.0.0.1, and its pages would read what is here."""
    status, body, _ = get(path, Host=host)
    assert status == 403
    assert b"localhost" in body


def test_only_the_loopback_address_is_listened_on(server):
    assert server.server_address[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.server_port}/?token={server.token}"


@pytest.mark.parametrize("path", ["/", "/runs.json", "/heatmap.json?run=a%20b%2Fversion_0&kind=forgetting&round=2", "/x"])
@pytest.mark.parametrize("token", ["", "x", "%C3%A9", "&token="])
def test_without_the_token_nothing_is_told(get, path, token):
    """Every user of the machine reaches the port; a script of the page has no secret in it."""
    status, body, _ = get(path, token=token)
    assert (status, body) == (403, b"Open the address that fl-lightning watch has printed, with its token\n")
    assert get("/page.js", token=token)[0] == 200


def test_every_server_has_a_token_of_its_own(server, tmp_path):
    """24 random bytes, in base 64."""
    with LiveServer(WatchedRuns(tmp_path), 0) as other:
        assert other.token != server.token
        assert re.fullmatch(r"[\w-]{32}", other.token)


def answers(connection: socket.socket) -> bytes:
    """What comes before the other side closes; empty as well where it does so at once."""
    connection.settimeout(20)
    try:
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))
    except ConnectionError:
        return b""


@pytest.mark.parametrize("sent", [b"", b"GET /page.js HTT"])
def test_a_connection_that_never_asks_is_closed(server, get, monkeypatch, capsys, sent):
    """Silent from the start or in the midst of a line; one that sends a byte now and then is none the longer there."""
    monkeypatch.setattr("fl_lightning.watch.server._LONGEST_REQUEST", 0.2)
    with socket.create_connection(("127.0.0.1", server.server_port)) as slow:
        slow.sendall(sent)
        began = time.monotonic()
        while sent and time.monotonic() < began + 5:
            time.sleep(0.02)
            try:
                slow.sendall(b"P")
            except ConnectionError:
                break
        assert answers(slow) == b""
        assert time.monotonic() < began + 5
    assert get("/page.js")[0] == 200
    assert capsys.readouterr().err == ""


def test_threads_have_a_bound(server, get):
    """Of 100 connections at once 32 are kept; a browser gets its answer when some of them end."""
    before = threading.active_count()
    kept = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(100)]
    deadline = time.monotonic() + 10
    while len(server._deadlines) < 32 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert all(answers(connection) == b"" for connection in kept[32:])
    assert threading.active_count() <= before + 32
    for connection in kept:
        connection.close()
    while server._deadlines and time.monotonic() < deadline:
        time.sleep(0.02)
    assert get("/page.js")[0] == 200


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_page_is_told_that_the_reader_has_ended(server, get, monkeypatch):
    """It would show the same runs for ever."""
    assert overview(get)["ended"] is None

    def fail() -> None:
        raise MemoryError("all taken")

    monkeypatch.setattr(server.runs, "refresh", fail)
    deadline = time.monotonic() + 20
    while (ended := json.loads(get("/runs.json")[1])["ended"]) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ended == "MemoryError: all taken"


def test_a_heatmap_that_cannot_be_shown_is_an_answer(get, monkeypatch):
    (run,) = overview(get)["runs"]

    def fail(*_: object) -> None:
        raise TypeError("no number")

    monkeypatch.setattr("fl_lightning.watch.server.heatmap", fail)
    status, body, _ = get(f"/heatmap.json?{urlencode({'run': run['name'], 'kind': 'forgetting', 'round': 2})}")
    assert (status, body) == (500, b"It cannot be shown (TypeError: no number)\n")


def test_nothing_can_be_changed(get):
    assert get("/runs.json", method="POST")[0] == 501


def test_a_browser_that_leaves_is_no_error(server, get, capsys):
    with socket.create_connection(("127.0.0.1", server.server_port)) as gone:
        gone.sendall(b"GET /page.js HTTP/1.1\r\nHost: localhost\r\n\r\n")
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")  # reset, and no goodbye
    assert get("/")[0] == 200
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "FOLDER is missing: give that of a run, or of many, as in fl-lightning watch runs"),
        (("nowhere",), "FOLDER is nowhere, which is not a folder"),
        ((".", "--port", "70000"), "--port is 70000, must be between 0 and 65,535: 0 is any that is free"),
        ((".", "--port", "x"), "port"),
        ((".", "--host", "0.0.0.0"), "host"),
    ],
)
def test_wrong_command_lines_are_one_line(main, arguments, says):
    code, out, error = main("watch", *arguments)
    assert (code, out, error.count("\n")) == (1, "", 1)
    assert error.startswith("fl-lightning: error: ")
    assert says in error


def test_a_port_that_is_taken_is_one_line(main):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, error = main("watch", ".", "--port", str(port))
    assert code == 1
    assert (
        error
        == f"fl-lightning: error: --port is {port}, which is in use on 127.0.0.1: give another, or 0 for any that is free\n"
    )
