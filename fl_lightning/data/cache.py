"""Decoded datasets on disk, so that images are decoded only once, and so that a set can be larger than the memory."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import get_args

import torch
from filelock import FileLock

from fl_lightning.data.mapped_files import create_rows, open_rows
from fl_lightning.data.samples import Dataset, Part, Samples
from fl_lightning.state.atomic_files import atomic_save, checked_load
from fl_lightning.state.cache_files import cache_file, naming_cache

_FORMAT = 4  # of the files; files of another format are ignored

Files = Mapping[Part, Path]
"""The file of each part's inputs in the cache."""


def cached(name: str, fingerprint: str, decode: Callable[[Files], Dataset]) -> Dataset:
    """The dataset from its cache files, or from ``decode``. What ``decode`` gives is stored.

    If two processes start at once, only the first decodes, and the second waits for it. Inputs are mapped from their files, so
    several processes share one copy in memory, and the system drops what is not in use.

    Args:
        name: readable part of the files' names.
        fingerprint: a text that changes when the files of the dataset change.
        decode: called if there are no cache files with that name and fingerprint. It can write inputs, one tensor a part, to
            the files of the parts by :func:`~fl_lightning.data.mapped_files.create_rows`, instead of holding them in memory.

    Raises:
        OSError: naming the cache file, if it is damaged or cannot be written.
    """
    path = cache_file(name, f"{_FORMAT}\n{fingerprint}", ".pt")
    files: Files = {part: path.with_suffix(f".{part}") for part in get_args(Part)}
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            _fill(path, files, decode)
    try:
        stored = checked_load(path)
        train, test = (_open(file, *stored[part]) for part, file in files.items())
    except (FileNotFoundError, ValueError) as error:
        raise OSError(f"data.source was decoded to {path}, which is damaged: delete the file, and it is made again") from error
    return Dataset(train, test, tuple(stored["classes"]), stored["owners"], stored["test_owners"])


def root_lock(root: Path) -> FileLock:
    """A lock for downloads into ``root``; its file is in the cache, since ``root`` can be read-only."""
    return FileLock(cache_file("root", str(root.resolve()), ".lock"))


def _fill(path: Path, files: Files, decode: Callable[[Files], Dataset]) -> None:
    """Write the inputs of each part to its file, and then everything else to ``path``: if that exists, all is complete."""
    _remove(files)  # of a process that was killed
    try:
        dataset = decode(files)
        parts: dict[Part, Samples] = {"train": dataset.train, "test": dataset.test}
        for part, samples in parts.items():
            _store(samples, files[part])
        plain = {part: [torch.empty_like(samples.inputs[:0]), samples.targets] for part, samples in parts.items()}
        plain |= {"classes": [*dataset.classes], "owners": dataset.owners, "test_owners": dataset.test_owners}
        with naming_cache(path):
            atomic_save(plain, path)
    except BaseException:
        _remove(files)
        raise


def _store(samples: Samples, file: Path) -> None:
    """Write inputs to a file, unless they are there or there are none, and wait until they are on the disk."""
    if len(samples) == 0:
        return
    if not file.exists():
        create_rows(file, samples.inputs.shape, samples.inputs.dtype).copy_(samples.inputs)
    with naming_cache(file), open(file, "rb+") as written:
        os.fsync(written.fileno())


def _open(file: Path, form: torch.Tensor, targets: torch.Tensor) -> Samples:
    """Samples with inputs in a file; ``form``: no input, of their shape and type."""
    return Samples(open_rows(file, (len(targets), *form.shape[1:]), form.dtype), targets)


def _remove(files: Files) -> None:
    for file in files.values():
        file.unlink(missing_ok=True)
