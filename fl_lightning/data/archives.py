"""The arrays of a NumPy archive, read without running code in it."""

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import BadZipFile, ZipFile, is_zipfile

import numpy as np

from fl_lightning.checks import check_memory, first_line


def read_archive(key: str, path: Path) -> dict[str, np.ndarray]:
    """The arrays of a ``.npz`` file by name; none is unpacked before its claimed size is checked.

    Args:
        key: of the command line, which names the file.

    Raises:
        ValueError: if it is not an archive of plain arrays, or they do not fit into memory.
    """
    with _plain_arrays(key, path):
        if not is_zipfile(path):
            raise ValueError("it is a single array, or something else")
        with ZipFile(path) as archive:
            sizes = [_claimed_bytes(archive, name) for name in archive.namelist()]
    check_memory(sum(sizes), f"the arrays of {key} {path}", "give a part of them")
    with _plain_arrays(key, path), np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


@contextmanager
def _plain_arrays(key: str, path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, ValueError, BadZipFile, NotImplementedError, RuntimeError, zlib.error) as error:
        raise ValueError(
            f"{key} is {path}, which is not an archive of plain arrays ({first_line(error)}): save it again"
        ) from error


def _claimed_bytes(archive: ZipFile, name: str) -> int:
    """Bytes of an array in an archive, from its header; refuses another number in the archive."""
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(file)
        claimed, there = dtype.itemsize * math.prod(shape), archive.getinfo(name).file_size - file.tell()
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects")
    if claimed != there:
        raise ValueError(f"{name} claims {claimed:,} bytes and has {there:,}")
    return claimed
