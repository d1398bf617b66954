"""How fast engines are on this machine: seconds of the same visits, and a file in the user's cache that keeps them."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import torch
from filelock import FileLock

from fl_lightning.checks import first_line
from fl_lightning.engines.engine import Engine
from fl_lightning.protocol import Visit
from fl_lightning.state.atomic_files import atomic_write
from fl_lightning.state.cache_files import cache_file, naming_cache


class Timing(NamedTuple):
    """Seconds of some visits under each engine that can run them, and why the others cannot."""

    seconds: dict[str, float]
    failures: dict[str, str]
    not_kept: str = ""  # why the seconds are measured at every start


def timed(engine: Engine, round: int, visits: Sequence[Visit], turns: int, max_steps: int | None = None) -> float:
    """Seconds of some visits under an engine: the median of all turns but the first, in which memory is allocated.

    Nothing is left behind: no state, no step of the server.

    Args:
        turns: 2 or more.
    """
    seconds: list[float] = []
    for _ in range(turns):
        start = time.perf_counter()
        engine.rehearse(round, visits, max_steps)
        if engine.context.device.type == "cuda":
            torch.cuda.synchronize(engine.context.device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def kept_timing(description: str, measure: Callable[[], Timing]) -> Timing:
    """The timing that the user's cache has for this machine, else a new one, which is kept there if no engine failed.

    If two processes start at once, only the first measures, and the second waits for it.

    Args:
        description: what the seconds depend on, besides the machine and the code of the engines.

    Raises:
        OSError: naming the file, if the disk is full.
    """
    try:
        path = cache_file("engines", f"{machine()}, {code()}\n{description}", ".json")
        lock = FileLock(path.with_suffix(".lock"))
        lock.acquire()
    except OSError as error:  # a home that cannot be written
        return measure()._replace(not_kept=first_line(error))
    try:
        with suppress(FileNotFoundError, ValueError):  # a file that is cut is made again
            return Timing(json.loads(path.read_text()), {})
        timing = measure()
        if not timing.failures:
            with naming_cache(path), atomic_write(path) as file:
                file.write_text(json.dumps(timing.seconds))
        return timing
    finally:
        lock.release()


def machine() -> str:
    """What decides how fast torch is here: processors, version, kernels, threads, and the GPU if there is one."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return f"{processors()}, {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()}, {gpu}"


def code() -> str:
    """A digest of the engines' code, which decides how fast they are."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return blake2b(b"".join(path.read_bytes() for path in files), digest_size=8).hexdigest()


def processors() -> str:
    """Number and model of the processors."""
    table = Path("/proc/cpuinfo")  # the model is nowhere else on Linux
    lines = table.read_text().splitlines() if table.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} x {models[0] if models else platform.processor() or platform.machine()}"
