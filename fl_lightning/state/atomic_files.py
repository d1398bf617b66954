"""Files that are written completely or not at all."""

import errno
import os
import re
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from pickle import UnpicklingError
from struct import Struct
from types import FrameType
from typing import Any, BinaryIO
from zlib import crc32

import torch
from torch.utils.serialization import config

from fl_lightning.checks import first_line

# The end of a zip archive: a record of 22 bytes, of which the last two are the length of the comment after it.
_LENGTH = Struct("<H")
_COMMENT = b"crc32:%08x"
_PLAIN_END = re.compile(rb"PK\x05\x06.{16}\x00\x00", re.DOTALL)
_DIGESTED_END = re.compile(rb"PK\x05\x06.{16}\x0e\x00crc32:([0-9a-f]{8})", re.DOTALL)
_PLAIN_SIZE, _DIGESTED_SIZE = 22, 36
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of the system for a file that cannot grow."""
_CHUNK = 1 << 18  # bytes read at a time, which stay in the processor's cache for the digest


@contextmanager
def atomic_write(path: str | os.PathLike[str], lasting: bool = True) -> Iterator[Path]:
    """Yield a temporary path next to ``path``, which replaces it when the block ends without an error.

    The data is on disk before the name changes, so a kill or a power cut leaves the old file or the new one, never a part of
    one; an error in the block leaves the old one and no temporary file. Only one process at a time can write a file.

    Args:
        lasting: whether the new name survives a power cut once the block has ended; if not, :func:`sync_folder` does this
            for many names at once.

    Raises:
        OSError: naming the file, if the folder cannot be written or the disk is full.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.tmp")  # one name: the next write replaces the rest of a killed one
    try:
        make_folder(path.parent)
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        if lasting:
            sync_folder(path.parent)
    except OSError as error:
        if error.filename is not None and Path(error.filename) not in (temporary, path, *path.parents):
            raise  # it is about another file, which the block read
        raise unwritable(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, so that their names survive a power cut."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut.

    Raises:
        OSError: if the disk fails.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # from file systems that cannot do this for folders
            raise
    finally:
        os.close(descriptor)


@contextmanager
def naming_folder(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Name the folder in an error of the block that names no file, such as that of a full disk.

    Raises:
        OSError: naming the folder, if it cannot be written or the disk is full.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise unwritable(folder, error) from error


def unwritable(path: str | os.PathLike[str], error: OSError) -> OSError:
    """An error of one line that names a path, the reason in the system's error, and the cure."""
    space = "free some space or " if error.errno in FULL_DISK else ""
    return OSError(f"{path} could not be written ({error.strerror or error}): {space}choose another folder")


def atomic_save(value: Any, path: str | os.PathLike[str], lasting: bool = True) -> int:
    """``torch.save`` through :func:`atomic_write`, with a digest of all bytes, which :func:`checked_load` compares.

    The digest is the comment of the zip archive that torch writes, so ``torch.load`` reads the file like any other. The
    slow checksums of torch, which are never read, are left out.

    Args:
        lasting: as for :func:`atomic_write`.

    Returns:
        The digest.

    Raises:
        OSError: naming the file, if it cannot be written.
    """
    # Through an open file: given a name, torch turns a full disk into a RuntimeError about positions.
    without_checksums = config.patch("save.compute_crc32", False)  # pyright: ignore[reportAttributeAccessIssue]
    with (
        _interrupts_held_back(),
        atomic_write(path, lasting) as temporary,
        open(temporary, "wb") as file,
        without_checksums,
    ):
        digested = _DigestedFile(file)
        try:
            torch.save(value, digested)  # pyright: ignore[reportArgumentType]
        except RuntimeError as error:  # of torch when a disk is full, about positions in the file
            raise digested.failure or error from error
        comment = _COMMENT % digested.crc
        file.seek(-_LENGTH.size, os.SEEK_END)  # an archive ends with the length of its comment, here 0
        file.write(_LENGTH.pack(len(comment)) + comment)
    return digested.crc


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block: torch's writer would turn it into an error of its format, or end the process."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda *interrupt: interrupts.append(interrupt))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if interrupts:
            handler(*interrupts[0])


def checked_load(path: str | os.PathLike[str], mmap: bool = False, digest: int | None = None) -> Any:
    """The value in a file of :func:`atomic_save`, with its tensors on the CPU, after its digest is compared.

    Only tensors and plain containers are read, never code. A file without a digest, such as one of ``torch.save``, is read as
    it is, unless ``digest`` is given.

    Args:
        mmap: whether the tensors stay in the file, which must not change meanwhile.
        digest: the required digest, of :func:`stored_digest`.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: with the fault of the file, but without its name.
    """
    check_digest(path, digest)
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except UnpicklingError as error:  # its text advises to read code too
        raise ValueError("it holds code or objects, not only tensors and plain containers") from error
    except Exception as error:  # torch can raise anything for broken files
        raise ValueError(f"torch cannot: {first_line(error)[:100]}") from error


class _DigestedFile:
    """A file that is written from start to end, with the CRC-32 of its bytes and the error, if there was one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.crc = file, 0
        self.failure: OSError | None = None

    def write(self, data: bytes) -> int:
        self.crc = crc32(data, self.crc)
        try:
            return self._file.write(data)
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        self._file.flush()


def stored_digest(path: str | os.PathLike[str]) -> int | None:
    """The digest that :func:`atomic_save` wrote at the end of a file, or None. The rest of the file is not read.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if it does not end like an archive of torch, or is not a file but a pipe, a folder or a device.
    """
    with _opened(path) as file:
        return _digest_at_the_end(file)


def check_digest(path: str | os.PathLike[str], digest: int | None = None) -> None:
    """Compare the digest at the end of an archive, if there is one, with the bytes before it and with ``digest``.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if they differ, or as for :func:`stored_digest`.
    """
    with _opened(path) as file:
        stored = _digest_at_the_end(file)
        if digest is not None and stored != digest:
            found = "none" if stored is None else f"{stored:08x}"
            raise ValueError(f"it is not the file that the run wrote: its CRC-32 is {found}, not {digest:08x}")
        crc = None if stored is None else _digest_of_content(file)
    if crc != stored:
        raise ValueError(f"its bytes have changed since they were written: their CRC-32 is {crc:08x}, was {stored:08x}")


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[FileIO]:
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe waits for a process that writes to it
        raise ValueError("it is not a file, but a pipe, a folder or a device")
    with open(path, "rb", buffering=0) as file:
        yield file


def _digest_at_the_end(file: FileIO) -> int | None:
    file.seek(max(file.seek(0, os.SEEK_END) - _DIGESTED_SIZE, 0))
    end = file.read()
    if _PLAIN_END.fullmatch(end[-_PLAIN_SIZE:]):
        return None
    if (match := _DIGESTED_END.fullmatch(end)) is None:
        raise ValueError("it is not an archive that torch.save wrote, or not all of it")
    return int(match[1], 16)


def _digest_of_content(file: FileIO) -> int:
    """The CRC-32 of an archive as it was before its digest became its comment."""
    rest = file.seek(0, os.SEEK_END) - _DIGESTED_SIZE + _PLAIN_SIZE - _LENGTH.size
    crc, buffer = 0, memoryview(bytearray(_CHUNK))
    file.seek(0)
    while rest > 0 and (count := file.readinto(buffer[: min(rest, _CHUNK)])):
        crc, rest = crc32(buffer[:count], crc), rest - count
    return crc32(_LENGTH.pack(0), crc)
