"""Three bare processes that watch each other: no torch, so that each starts at once."""

import signal
import socket
import struct
import subprocess
import sys
import time
from functools import partial
from types import SimpleNamespace

import pytest

from fl_lightning.processes import peer_watch, torchrun_store

PROGRAM = f"""
import importlib.util, os, signal, sys, time
spec = importlib.util.spec_from_file_location("peer_watch", {peer_watch.__file__!r})
peer_watch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(peer_watch)
peer_watch._TICK = 0.5  # half as long as in a run, as are the timeouts
rank, timeout, what = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
if rank == 0:
    server, port, word = peer_watch.listen("127.0.0.1")
    print(port, word, flush=True)
    links = peer_watch.accept(server, word, 3, timeout=20)
else:
    links = peer_watch.connect("127.0.0.1", int(sys.argv[4]), sys.argv[5], rank, timeout=20)
watch = peer_watch.PeerWatch(rank, links, timeout, lambda: None)
print("watching", flush=True)
if what == "fails":
    time.sleep(0.5)
    watch.fail("model.mu is -1, must be at least 0")
elif what == "leaves":
    time.sleep(0.5)
    watch.leave()
elif what == "interrupted":
    time.sleep(0.5)
    watch.stop(signal.SIGINT)
else:
    time.sleep(float(what))
    watch.leave()
"""


@pytest.fixture
def start():
    """Start three processes, the first one listening; each sleeps for so many seconds or does what is said of it."""
    started = []

    def launch(rank: int, timeout: float, what: str, *where: str) -> subprocess.Popen:
        command = [sys.executable, "-S", "-c", PROGRAM, str(rank), str(timeout), what, *where]
        # Tests that run in the background of a script inherit that Ctrl-C is ignored.
        heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, **pipes, text=True, preexec_fn=heed))
        return started[-1]

    def run(*what: str, timeout: float = 20.0) -> list[subprocess.Popen]:
        first = launch(0, timeout, what[0])
        where = first.stdout.readline().split()
        processes = [first, *(launch(rank, timeout, what[rank], *where) for rank in (1, 2))]
        for process in processes:
            assert process.stdout.readline() == "watching\n"
        return processes

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("gone", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_process_ends_the_others(start, gone):
    """kill -9, long before any silence: the others end with one line that names its rank and the key, also the third."""
    processes = start("60", "60", "60")
    processes[gone].kill()
    for rank, process in enumerate(processes):
        _, error = process.communicate(timeout=15)
        if rank != gone:
            assert process.returncode == 1
            assert error.startswith(f"fl-lightning: error: rank {gone} has ended without a word")
            assert "trainer.strategy.peer_timeout is 20 s" in error
            assert error.count("\n") == 1


@pytest.mark.parametrize("gone", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_frozen_process_ends_the_others(start, gone):
    """SIGSTOP: its connection stays open, and its silence tells."""
    processes = start("60", "60", "60", timeout=1.5)
    processes[gone].send_signal(signal.SIGSTOP)
    begin = time.monotonic()
    others = [process for rank, process in enumerate(processes) if rank != gone]
    for process in others:
        _, error = process.communicate(timeout=20)
        assert process.returncode == 1
        assert error.startswith(f"fl-lightning: error: rank {gone} has given no sign of life for 1.5 s")
        assert error.count("\n") == 1
    assert time.monotonic() - begin > 1


def test_a_slow_process_and_one_that_is_done_are_not_gone(start):
    """One works for twice the timeout, one leaves early: all end in order. A halt of all, as by Ctrl-Z, counts for nobody."""
    processes = start("3.5", "leaves", "3.5", timeout=1.5)
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    time.sleep(2)
    for process in processes:
        process.send_signal(signal.SIGCONT)
    for process in processes:
        _, error = process.communicate(timeout=20)
        assert (process.returncode, error) == (0, "")


def test_a_failure_is_named_everywhere(start):
    """The others say what the one that failed said."""
    processes = start("60", "fails", "60")
    lines = [process.communicate(timeout=15)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 0, 1]
    expected = "fl-lightning: error: rank 1 failed: model.mu is -1, must be at least 0\n"
    assert lines == [expected, "", expected]


def test_a_signal_reaches_all(start):
    """One process is interrupted: so are the others, each by the same signal."""
    processes = start("60", "interrupted", "60")
    for process in processes:
        process.communicate(timeout=15)
    assert [process.returncode for process in processes] == [-signal.SIGINT, 0, -signal.SIGINT]


STARTS = f"""
import importlib.util, os, subprocess, sys, time
spec = importlib.util.spec_from_file_location("peer_watch", {peer_watch.__file__!r})
peer_watch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(peer_watch)
if len(sys.argv) == 1:
    peer_watch.tell_first()
    subprocess.Popen([sys.executable, "-S", __file__, "other"])
    time.sleep(60)
with peer_watch.ending_with_first():
    print("waiting", flush=True)
    time.sleep(60)
"""


def test_who_waits_for_a_first_process_that_is_gone_ends(tmp_path):
    """kill -9 of the one that started it, before they have joined: one line, within seconds. Its output closes with it."""
    (tmp_path / "starts.py").write_text(STARTS)
    command = [sys.executable, "-S", str(tmp_path / "starts.py")]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert first.stdout.readline() == "waiting\n"
    first.kill()
    _, error = first.communicate(timeout=15)
    assert error == "fl-lightning: error: rank 0 has ended before all processes had joined: start them again\n"


def test_a_process_that_never_comes_is_named():
    """The first one waits for the connections of two others, of which none comes."""
    server, _, word = peer_watch.listen("127.0.0.1")
    with pytest.raises(ConnectionError, match=r"no connection came from rank 1, 2 in 0.1 s \(trainer.strategy.peer_timeout\)"):
        peer_watch.accept(server, word, 3, timeout=0.1)
    server.close()


@pytest.mark.parametrize("greeting", [b"guess 1\n", b"\xff\xfe 1\n", "ü 1\n".encode(), b"\n", b""])
def test_a_stranger_is_not_let_in(greeting):
    """Who does not know the word is no process of the run, whatever it sends; without a word it resets the connection."""
    server, port, word = peer_watch.listen("127.0.0.1")
    stranger = socket.create_connection(("127.0.0.1", port), timeout=5)
    stranger.sendall(greeting)
    if not greeting:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stranger.close()
    with pytest.raises(ConnectionError, match="rank 1"):
        peer_watch.accept(server, word, 2, timeout=0.5)
    server.close()


def test_a_stranger_that_says_nothing_keeps_nobody_out(monkeypatch):
    """Such as one that looks for open ports."""
    monkeypatch.setattr(peer_watch, "_GREETING", 0.2)
    server, port, word = peer_watch.listen("127.0.0.1")
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        links = peer_watch.connect("127.0.0.1", port, word, 1, timeout=5)
        accepted = peer_watch.accept(server, word, 2, timeout=5)
    assert accepted.keys() == {1}
    for link in (*accepted.values(), *links.values()):
        link.close()


def test_a_process_does_not_wait_for_ever_for_one_that_never_started(monkeypatch):
    """Before all have joined nobody sends signs of life: the wait for the others has an end."""
    monkeypatch.setattr(torchrun_store, "_store", lambda: SimpleNamespace(check=lambda keys: False))
    monkeypatch.setattr(torchrun_store, "_LONGEST_START", 0.2)
    monkeypatch.setattr(torchrun_store, "num_started", lambda: 2)
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ConnectionError, match="rank 1 has waited 0 s for another of the 2 processes that torchrun started"):
        torchrun_store._wait(lambda: False)
