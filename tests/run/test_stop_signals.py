"""A bare process that hangs, and is told to stop: no torch, so that it starts at once."""

import signal
import subprocess
import sys
import time

import pytest

from fl_lightning.run import stop_signals

PROGRAM = f"""
import importlib.util, signal, sys, time
spec = importlib.util.spec_from_file_location("stop_signals", {stop_signals.__file__!r})
stop_signals = importlib.util.module_from_spec(spec)
spec.loader.exec_module(stop_signals)
told = []
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: told.append(number))
grace, what = float(sys.argv[1]), sys.argv[2]
hear, say = lambda number: print("heard", int(number), flush=True), lambda: print("ends", flush=True)
with stop_signals.ends_on_signals(grace, hear, say):
    print("ready", flush=True)
    while what == "hangs" or not told:
        time.sleep(0.05)
time.sleep(2 * grace)
print("left")
"""


@pytest.fixture
def start():
    """Start a process that hangs or not, with a grace in seconds."""
    started = []

    def run(grace: float, what: str) -> subprocess.Popen:
        command = [sys.executable, "-S", "-c", PROGRAM, str(grace), what]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout.readline() == "ready\n"
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_hangs_ends_after_the_grace(start, number):
    """Its handler runs and changes nothing: a second later the process is gone, with the exit code of a signal."""
    process = start(1, "hangs")
    begin = time.monotonic()
    process.send_signal(number)
    out, _ = process.communicate(timeout=10)
    assert 0.9 < time.monotonic() - begin < 5
    assert (process.returncode, out) == (128 + number, f"heard {int(number)}\nends\n")


def test_a_second_signal_ends_it_at_once(start):
    """Long before the grace is over; other signals do not count."""
    process = start(60, "hangs")
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == f"heard {int(signal.SIGTERM)}\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=10)
    assert (process.returncode, out) == (128 + signal.SIGTERM, "ends\n")


def test_a_process_that_ends_in_time_is_left_alone(start):
    """It leaves the block, and lives on for longer than the grace."""
    process = start(0.5, "ends")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=10)
    assert (process.returncode, out) == (0, f"heard {int(signal.SIGTERM)}\nleft\n")
