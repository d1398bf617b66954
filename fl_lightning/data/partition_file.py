"""Partition files: the samples of each client, in JSON with one client per line, so that two files can be compared.

A file has the samples of each client, training and validation part together: the seed of the run splits them. It also has a
fingerprint of the labels for which it was made.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from torch import Tensor

from fl_lightning.checks import check_file
from fl_lightning.state.atomic_files import atomic_write

_FORMAT, _VERSION = "fl-lightning partition", 1
_CURE = "write it again with fl-lightning partition"


@dataclass(frozen=True)
class StoredPartition:
    """Index lists as read from a file."""

    path: Path
    clients: list[list[int]]
    samples: int | None  # of the data for which they were made; None if the file does not have it
    labels: str | None  # fingerprint of the data's labels

    def check_made_for(self, labels: Tensor) -> None:
        """Raise a ValueError, naming the file, if it was made for data with other labels."""
        name = f"data.partition.clients is {self.path}"
        if self.samples is not None and self.samples != len(labels):
            raise ValueError(
                f"{name}, made for {self.samples} training samples, data.source has {len(labels)}: set data.source to the data "
                f"that it was made for, or {_CURE}"
            )
        if self.labels is not None and self.labels != fingerprint(labels):
            raise ValueError(
                f"{name}, made for other labels than those of data.source: set data.source to the data that it was made for, "
                f"or {_CURE}"
            )


def write_partition(
    path: Path, parts: Sequence[Tensor], labels: Tensor, *, classes: Sequence[str], partition: str, seed: int
) -> None:
    """Write the samples of each client.

    Args:
        path: the file, which is written completely or not at all, and replaced if it exists.
        parts: each client's sample indices; their order is kept, since the split in two depends on it.
        labels: (n,) of all training samples.
        partition: the partition that made the parts, as it prints itself.

    Raises:
        OSError: naming the file, if it cannot be written.
    """
    head = {
        "format": _FORMAT,
        "version": _VERSION,
        "partition": partition,
        "seed": seed,
        "samples": len(labels),
        "labels": fingerprint(labels),
        "classes": list(classes),
    }
    with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write("{\n" + "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items()))
        file.write('"clients": [\n' + ",\n".join(_client_lines(parts, labels.numpy())) + "\n]}\n")


def read_partition(path: Path) -> StoredPartition:
    """Read a file of :func:`write_partition`, or a plain JSON list of index lists, without a fingerprint.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if it is neither, or of another version of the format.
    """
    name = f"data.partition.clients is {path}"
    check_file("data.partition.clients", path, "give a partition file or a JSON file of index lists")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}, which is not JSON ({error}): give a partition file or a list of index lists") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        if not _are_index_lists(content):
            raise ValueError(
                f"{name}, which holds no list of lists of integers and is not a partition file: give one list a client"
            )
        return StoredPartition(path, content, samples=None, labels=None)
    if content.get("version") != _VERSION:
        found = json.dumps(content.get("version"))
        raise ValueError(f"{name}, of version {found} of the format, this fl-lightning reads version {_VERSION}: {_CURE}")
    try:
        clients = [client["indices"] for client in content["clients"]]
        stored = StoredPartition(path, clients, int(content["samples"]), str(content["labels"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        stored = None
    if stored is None or not _are_index_lists(stored.clients):
        raise ValueError(f"{name}, a partition file with a part missing or changed: {_CURE}")
    return stored


def fingerprint(labels: Tensor) -> str:
    """A digest of labels."""
    return blake2b(labels.numpy().astype("<i8").tobytes(), digest_size=16).hexdigest()


def _client_lines(parts: Sequence[Tensor], labels: np.ndarray) -> Iterator[str]:
    for part in parts:
        held, counts = np.unique(labels[part.numpy()], return_counts=True)
        label_counts = dict(zip(held.tolist(), counts.tolist(), strict=True))
        yield json.dumps({"size": len(part), "label_counts": label_counts, "indices": part.tolist()})


def _are_index_lists(content: Any) -> TypeGuard[list[list[int]]]:
    return isinstance(content, list) and all(
        isinstance(client, list) and all(type(index) is int for index in client) for client in content
    )
