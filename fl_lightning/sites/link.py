"""A message between Flower's ClientApp and the process of its site, on one machine: Flower's records.

Flower starts a process for each message, which ends with the reply; the net and the samples are in a process that stays.
The ClientApp's end does not import torch, which would take longer than most visits.
"""

import json
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

SOCKET = "site.socket"
"""Name of the Unix socket in the folder of a site."""
_LONGEST = 100  # bytes in the path of a Unix socket, which Linux limits to 107


def records_of(values: Mapping[str, Any], arrays: Mapping[str, Array] = {}) -> RecordDict:
    """The records of a message: numbers and texts, and arrays, by name."""
    return RecordDict({"numbers": ConfigRecord(dict(values)), "arrays": ArrayRecord(dict(arrays))})


def values_of(message: RecordDict) -> dict[str, Any]:
    """The numbers and texts of a message, by name."""
    return dict(message.config_records["numbers"])


def send(connection: Connection, message: RecordDict) -> None:
    """Send a message of :func:`records_of`."""
    arrays = message.array_records["arrays"]
    kinds = [(name, array.dtype, array.shape, array.stype) for name, array in arrays.items()]
    connection.send_bytes(json.dumps([values_of(message), kinds]).encode())
    for array in arrays.values():
        connection.send_bytes(array.data)


def receive(connection: Connection) -> RecordDict:
    """Receive a message; nothing in it is run as code."""
    values, kinds = json.loads(connection.recv_bytes())
    arrays = {name: Array(dtype, tuple(shape), stype, connection.recv_bytes()) for name, dtype, shape, stype in kinds}
    return records_of(values, arrays)


def socket_of(folder: Path) -> str:
    """The path of a site's socket.

    Raises:
        ValueError: if the system does not take a path of that length.
    """
    path = str(folder.absolute() / SOCKET)
    if len(path.encode()) > _LONGEST:
        raise ValueError(f"--site is {folder}, whose path is too long for a socket ({path}): choose a shorter one")
    return path
