"""A message between Flower's ClientApp and the process of its site, on one machine: numbers, and arrays as NumPy's files.

Flower starts a process for each message, which ends with the reply; the net and the samples are in a process that stays.
Neither end of this module needs torch: its import would take longer than most visits.
"""

import json
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

SOCKET = "site.socket"
"""Name of the Unix socket in the folder of a site."""
_LONGEST = 100  # bytes in the path of a Unix socket, which Linux limits to 107


class Parcel(NamedTuple):
    """A message in plain values.

    Args:
        numbers: numbers and texts, by name.
        arrays: bytes of NumPy's file of each array, by name.
    """

    numbers: dict[str, Any]
    arrays: dict[str, bytes]


def send(connection: Connection, numbers: Mapping[str, Any], arrays: Mapping[str, bytes]) -> None:
    """Send a message."""
    connection.send_bytes(json.dumps([dict(numbers), list(arrays)]).encode())
    for array in arrays.values():
        connection.send_bytes(array)


def receive(connection: Connection) -> Parcel:
    """Receive a message; nothing in it is run as code."""
    numbers, names = json.loads(connection.recv_bytes())
    return Parcel(numbers, {name: connection.recv_bytes() for name in names})


def socket_of(folder: Path) -> str:
    """The path of a site's socket.

    Raises:
        ValueError: if the system does not take a path of that length.
    """
    path = str(folder.absolute() / SOCKET)
    if len(path.encode()) > _LONGEST:
        raise ValueError(f"--site is {folder}, whose path is too long for a socket ({path}): choose a shorter one")
    return path
