"""Tensors in files, for samples that memory does not hold: the system reads what is used and drops what is not."""

import errno
import math
import mmap
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

import torch
from torch import Tensor

from fl_lightning.checks import machine_memory
from fl_lightning.state.cache_files import cache_folder, naming_cache

# Without this flag, which Python names from 3.13 on, Linux refuses private mappings of files larger than the memory.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


def empty_rows(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor (n, ...): in memory, or in a file if it takes more than half of this machine's memory.

    The file has no name in the cache folder, so its space is free again when the process ends, even by a kill.

    Raises:
        OSError: naming the folder, if the disk has no space for it.
    """
    if _num_bytes(shape, dtype) <= machine_memory() / 2:
        return torch.empty(*shape, dtype=dtype)
    folder = cache_folder()
    with naming_cache(folder), TemporaryFile(dir=folder) as file:
        return _grown(file, shape, dtype)


def create_rows(path: Path, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor (n, ...) of at least one value in a new file: writes to the tensor change the file.

    Raises:
        OSError: naming the file, if it cannot be written or the disk has no space for it.
    """
    with naming_cache(path), open(path, "w+b") as file:
        return _grown(file, shape, dtype)


def open_rows(path: Path, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The tensor (n, ...) in a file: processes share one copy in memory, and writes change neither that copy nor the file.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if it is shorter than the tensor.
    """
    if math.prod(shape) == 0:
        return torch.empty(*shape, dtype=dtype)
    with open(path, "rb") as file:
        return _mapped(file, shape, dtype, mmap.MAP_PRIVATE | _NO_RESERVE)


def _grown(file: BinaryIO, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    # Its blocks are claimed first: a write to a mapped file that the disk cannot hold would end the process.
    size, disk = _num_bytes(shape, dtype), os.fstatvfs(file.fileno())
    if size > (free := disk.f_bavail * disk.f_frsize):
        raise OSError(errno.ENOSPC, f"it takes {size / 1e9:,.1f} GB, the disk has {free / 1e9:,.1f}")
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:  # macOS
        file.truncate(size)
    return _mapped(file, shape, dtype, mmap.MAP_SHARED)


def _mapped(file: BinaryIO, shape: Sequence[int], dtype: torch.dtype, flags: int) -> Tensor:
    memory = mmap.mmap(file.fileno(), _num_bytes(shape, dtype), flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return torch.frombuffer(memory, dtype=dtype).reshape(*shape)


def _num_bytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    return math.prod(shape) * dtype.itemsize
