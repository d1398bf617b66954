"""Messages between processes that torchrun started, before their process group exists.

torchrun serves a store from its start to its end. Processes of one machine that Lightning starts need no store: they begin when
the first one has read its arguments and made its folder.
"""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import TypeVar

import torch
from torch.distributed.distributed_c10d import PrefixStore, Store, default_pg_timeout
from torch.distributed.rendezvous import rendezvous

_PATIENCE = timedelta(seconds=20)  # for the store, which exists before the processes
_POLL = 0.1  # seconds
_LONGEST_START = 600.0  # seconds between the start of one process and that of another
Plain = TypeVar("Plain", bound=str | bool | None)


def num_started() -> int:
    """Number of processes that torchrun started, on all machines; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if torch.distributed.is_torchelastic_launched() else 1


def decided_by_first(name: str, decide: Callable[[], Plain]) -> Plain:
    """The result of ``decide`` in the first process, in all processes; the others need no access to its files.

    Raises:
        ConnectionError: in the others, with the message of the first, if it failed.
    """
    if num_started() == 1:
        return decide()
    store = _store()
    if os.environ["RANK"] == "0":
        decision = decide()
        store.set(name, json.dumps(decision))
        return decision
    _wait(lambda: store.check([name]))
    return json.loads(store.get(name))


def await_all() -> None:
    """Wait until every process is about to join the process group.

    Raises:
        ConnectionError: with the message of one that failed before.
    """
    if num_started() > 1:
        store = _store()
        store.add("arrived", 1)
        _wait(lambda: store.add("arrived", 0) >= num_started())


def group_store(timeout: timedelta | None) -> Store:
    """The store in which processes that torchrun started find each other's addresses, a new one in every restart.

    Args:
        timeout: maximum wait for a value from another process; None: torch's default.
    """
    return PrefixStore("group", _connected(timeout or default_pg_timeout))


def tell_failure(line: str) -> None:
    """Let all others that wait for this process end with its error."""
    if num_started() > 1:
        with suppress(torch.distributed.DistError):  # torchrun is gone, and with it the other processes
            _store().set("failure", f"rank {os.environ['RANK']} failed: {line}")


def _wait(is_over: Callable[[], bool]) -> None:
    store, deadline = _store(), time.monotonic() + _LONGEST_START
    try:
        while not is_over():
            if time.monotonic() > deadline:
                raise ConnectionError(
                    f"rank {os.environ['RANK']} has waited {_LONGEST_START:.0f} s for another of the {num_started()} processes "
                    "that torchrun started: see how it ended"
                )
            if store.check(["failure"]):
                raise ConnectionError(store.get("failure").decode())
            time.sleep(_POLL)
    except torch.distributed.DistError as error:
        raise ConnectionError("rank 0 is gone before the first round, and torchrun with it: see what it says") from error


@cache
def _store() -> Store:
    """The connection of the functions in this file."""
    return _connected(_PATIENCE)


def _connected(timeout: timedelta) -> Store:
    """A separate connection to torchrun's store, with a prefix of the keys for each restart."""
    store, _, _ = next(rendezvous("env://", timeout=timeout))
    return PrefixStore(f"fl-lightning/{os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
