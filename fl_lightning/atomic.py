"""Files that are there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch.utils.serialization import config


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, which takes its place when the block ends without an error.

    The data is on disk before the name changes, so a kill or a power cut leaves the old file or the new one, never half of
    one; an error in the block leaves the old one and no temporary file. One process at a time may write a file.

    Raises:
        OSError: naming the file, if the folder cannot be written or the disk is full.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.tmp")  # one name, so that what a kill leaves is overwritten next time
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if error.filename is not None and Path(error.filename) not in (temporary, path, *path.parents):
            raise  # about another file, which the block read
        raise OSError(
            f"{path} could not be written ({error.strerror or error}): free some space or choose another folder"
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def atomic_save(value: Any, path: str | os.PathLike[str]) -> None:
    """``torch.save`` through :func:`atomic_write`, without checksums: torch never reads them, and they take most of the time.

    Raises:
        OSError: naming the file, if it cannot be written.
    """
    # Through an open file: given a name, torch turns a full disk into a RuntimeError about positions.
    without_checksums = config.patch("save.compute_crc32", False)
    with atomic_write(path) as temporary, open(temporary, "wb") as file, without_checksums:
        torch.save(value, file)
