"""PeerWatch: the processes of a run notice at once that one of them is gone."""

import json
import os
import secrets
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_TICK = 1.0  # seconds between signs of life
_LAST_WORDS = 0.5  # seconds in which the other processes can print their lines
_GREETING = 10.0  # seconds for what another process says as it connects
_GRACE = 2.0  # seconds for the main thread to clean up


_FIRST = "FL_LIGHTNING_FIRST_PROCESS"  # for the other processes of a machine: the id of the one that starts them


class PeerLost(SystemExit):
    """Another process of the run is gone, as a line on standard error has shown."""


class PeerWatch:
    """Ends this process, with one line on standard error, once another one of the run has died, failed or fallen silent.

    Every process has a connection to the first. Over it both send a sign of life each second, from a thread, so the length of a
    client's visit does not matter. The first passes on what it learns. Without other news, a process counts as gone once its
    connection closes or sends nothing for ``timeout`` seconds; time in which this process itself was halted does not count. A
    signal that stops one process also stops the others.

    Args:
        rank: rank of this process.
        links: connections by rank: for the first process to all others, for any other to the first.
        timeout: seconds.
        end_children: ends the processes that this one started.
    """

    def __init__(self, rank: int, links: dict[int, socket.socket], timeout: float, end_children: Callable[[], None]) -> None:
        self.rank, self.timeout, self._end_children = rank, timeout, end_children
        self._links, self._unread = links, dict.fromkeys(links, b"")
        self._silence = dict.fromkeys(links, 0.0)  # seconds, by rank
        self._left, self._lost = threading.Event(), threading.Event()
        self.is_ending = False  # because another process is gone
        self._selector = selectors.DefaultSelector()
        for peer, link in links.items():
            link.setblocking(False)
            self._selector.register(link, selectors.EVENT_READ, peer)
        threading.Thread(target=self._watch, name="peer-watch", daemon=True).start()

    @property
    def _advice(self) -> str:
        return (
            f"where trainer.strategy.peer_timeout is {self.timeout:g} s: start the processes again, with --ckpt_path last they "
            "resume from the last checkpoint"
        )

    def leave(self) -> None:
        """This process is done: from here on it does not end with the others, nor they with it."""
        self._left.set()
        self._tell({"left": self.rank})

    def fail(self, reason: str) -> None:
        """This process ends with an error; the others will end too, and name it."""
        self._left.set()
        self._tell({"lost": self.rank, "how": f"failed: {reason}"})

    def stop(self, number: signal.Signals) -> None:
        """A signal stops this process; it will stop the others too."""
        if not self._left.is_set():
            self._left.set()
            self._tell({"signal": number})

    def raise_if_lost(self, patience: float) -> None:
        """Raise as soon as a process is known to be gone, or return after some seconds.

        Raises:
            PeerLost: this process has printed a line about it, and ends within two seconds.
        """
        if self._lost.wait(patience):
            raise PeerLost(1)

    def _watch(self) -> None:
        last = time.monotonic()
        while self._links and not self._left.is_set():
            for key, _ in self._selector.select(_TICK / 4):
                self._receive(key.data)
            if time.monotonic() - last >= _TICK:
                last = time.monotonic()
                self._tick()
        self._selector.close()

    def _tick(self) -> None:
        """Send a sign of life, and count the silence of the others."""
        self._tell(None)
        for peer in list(self._links):
            self._silence[peer] += _TICK
            if self._silence[peer] > self.timeout:
                self._lose(peer, f"has given no sign of life for {self.timeout:g} s, {self._advice}")

    def _receive(self, peer: int) -> None:
        try:
            data = self._links[peer].recv(65536)
        except OSError:
            data = b""
        if not data:
            return self._lose(peer, f"has ended without a word, killed or with its machine, {self._advice}")
        self._silence[peer] = 0.0
        *lines, self._unread[peer] = (self._unread[peer] + data).split(b"\n")
        for line in filter(None, lines):
            self._hear(peer, json.loads(line))

    def _hear(self, peer: int, message: dict[str, Any]) -> None:
        if "left" in message:
            self._selector.unregister(self._links.pop(peer))
        elif "lost" in message:
            self._lose(message["lost"], message["how"])
        else:
            if self.rank == 0:
                self._tell(message)
            if not self._left.is_set():  # else it is its own signal, passed on by the first process
                self._left.set()
                os.kill(os.getpid(), message["signal"])

    def _tell(self, message: dict[str, Any] | None) -> None:
        """Send a line to everyone connected; None: a sign of life."""
        line = (b"" if message is None else json.dumps(message).encode()) + b"\n"
        for link in list(self._links.values()):
            try:
                link.sendall(line)
            except OSError:  # gone or halted, as reading it or its silence will show
                continue

    def _lose(self, peer: int, how: str) -> None:
        """End this process: through its main thread if that asks in time, or else at once."""
        if self._left.is_set():  # it ends for another reason
            return
        self.is_ending = True
        if self.rank == 0:
            self._tell({"lost": peer, "how": how})
        print(f"fl-lightning: error: rank {peer} {how}", file=sys.stderr, flush=True)
        time.sleep(_LAST_WORDS)
        self._end_children()
        self._lost.set()
        time.sleep(_GRACE)
        os._exit(1)


def tell_first() -> None:
    """Let the processes that this one starts find it; see :func:`ending_with_first`."""
    os.environ[_FIRST] = str(os.getpid())


@contextmanager
def ending_with_first() -> Iterator[None]:
    """During the block, end this process with one line if the one that started it is gone, even if it was so before.

    Until all processes have joined, a process has no other way to notice this. It does not end if no process started it.
    """
    first, joined = int(os.environ.get(_FIRST, os.getpid())), threading.Event()
    if first != os.getpid():
        threading.Thread(target=_watch_first, args=(first, joined), name="first-watch", daemon=True).start()
    try:
        yield
    finally:
        joined.set()


def _watch_first(first: int, joined: threading.Event) -> None:
    while os.getppid() == first:
        if joined.wait(_TICK):
            return
    print(
        "fl-lightning: error: rank 0 has ended before all processes had joined: start them again", file=sys.stderr, flush=True
    )
    os._exit(1)


def listen(address: str) -> tuple[socket.socket, int, str]:
    """A server for :func:`accept` at the address of this machine, its port, and a password for connections."""
    family = socket.getaddrinfo(address, None)[0][0]
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    server = socket.create_server(("", 0), family=family, dualstack_ipv6=both)
    return server, server.getsockname()[1], secrets.token_hex(16)


def accept(server: socket.socket, word: str, world_size: int, timeout: float) -> dict[int, socket.socket]:
    """Connections of all other processes, by rank.

    Raises:
        ConnectionError: naming the ranks without one in time.
    """
    links: dict[int, socket.socket] = {}
    server.settimeout(timeout)
    while len(links) < world_size - 1:
        try:
            link, _ = server.accept()
        except TimeoutError as error:
            missing = ", ".join(str(rank) for rank in range(1, world_size) if rank not in links)
            raise ConnectionError(
                f"no connection came from rank {missing} in {timeout:g} s (trainer.strategy.peer_timeout): see what it says"
            ) from error
        link.settimeout(min(timeout, _GREETING))
        try:
            greeting = link.makefile("rb", buffering=0).readline(99).split()  # without the bytes after it
        except (TimeoutError, ConnectionError):  # a stranger's, which said nothing or was reset
            continue
        if len(greeting) == 2 and secrets.compare_digest(greeting[0], word.encode()):
            links[int(greeting[1])] = link
    server.close()
    return links


def connect(address: str, port: int, word: str, rank: int, timeout: float) -> dict[int, socket.socket]:
    """The connection to the first process.

    Raises:
        ConnectionError: if there is none.
    """
    try:
        link = socket.create_connection((address, port), timeout=timeout)
        link.sendall(f"{word} {rank}\n".encode())
    except OSError as error:
        raise ConnectionError(f"rank 0 cannot be reached at {address}:{port} ({error}): let the machines connect") from error
    return {0: link}
