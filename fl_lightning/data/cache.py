"""Decoded datasets on disk, so that images are decoded only once."""

import os
import pickle
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import torch
from filelock import FileLock

from fl_lightning.data.samples import Dataset, Samples
from fl_lightning.state.atomic_files import atomic_save

_FORMAT = 3  # of the files; files of another format are ignored


def cached(name: str, fingerprint: str, decode: Callable[[], Dataset]) -> Dataset:
    """The dataset from its cache file, or from ``decode``, whose result is then stored.

    If two processes start at once, only the first decodes, and the second waits for it. The tensors are mapped from the file,
    so several processes share one copy in memory.

    Args:
        name: readable part of the file's name.
        fingerprint: a text that changes when the files of the dataset change.
        decode: called if there is no cache file with that name and fingerprint.

    Raises:
        OSError: naming the cache file, if it is damaged or cannot be written.
    """
    path = _path(name, f"{_FORMAT}\n{fingerprint}", ".pt")
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            _write(decode(), path)
    try:
        stored = torch.load(path, mmap=True, weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise OSError(f"data.source was decoded to {path}, which is damaged: delete the file, and it is made again") from error
    parts, owners = (Samples(*stored["train"]), Samples(*stored["test"])), (stored["owners"], stored["test_owners"])
    return Dataset(*parts, tuple(stored["classes"]), *owners)


def root_lock(root: Path) -> FileLock:
    """A lock for downloads into ``root``; its file is in the cache, since ``root`` can be read-only."""
    return FileLock(_path("root", str(root.resolve()), ".lock"))


def _write(dataset: Dataset, path: Path) -> None:
    plain = {
        "train": [dataset.train.inputs, dataset.train.targets],
        "test": [dataset.test.inputs, dataset.test.targets],
        "classes": list(dataset.classes),
        "owners": dataset.owners,
        "test_owners": dataset.test_owners,
    }
    try:
        atomic_save(plain, path)
    except OSError as error:
        raise OSError(f"{error} with FL_LIGHTNING_CACHE=FOLDER") from error


def _path(name: str, key: str, suffix: str) -> Path:
    """A file of the cache, a separate one for every key, with a readable name; its folder is made.

    The folder is ``$FL_LIGHTNING_CACHE``, or ``fl_lightning`` in the user's cache folder.
    """
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fl_lightning"
    folder = Path(os.environ.get("FL_LIGHTNING_CACHE", default))
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}-{blake2b(key.encode(errors='surrogateescape'), digest_size=8).hexdigest()}{suffix}"
