"""The user's cache: files that can be made again."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from fl_lightning.state.atomic_files import unwritable


def cache_folder() -> Path:
    """``$FL_LIGHTNING_CACHE``, or ``fl_lightning`` in the user's cache folder; it is made."""
    given = os.environ.get("FL_LIGHTNING_CACHE")  # empty ones count as not given
    folder = Path(given or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fl_lightning")
    with naming_cache(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def naming_cache(path: Path) -> Iterator[None]:
    """Name a file or folder of the cache, and the cure, in an error of the block, which writes to it.

    Raises:
        OSError: naming the path, if it cannot be written or the disk is full.
    """
    try:
        yield
    except OSError as error:
        named = error if error.errno is None else unwritable(path, error)  # atomic_save names it itself
        raise OSError(f"{named} with FL_LIGHTNING_CACHE=FOLDER") from error


def cache_file(name: str, key: str, suffix: str) -> Path:
    """A file of the cache, a separate one for every key, with a readable name; its folder is made."""
    return cache_folder() / f"{name}-{blake2b(key.encode(errors='surrogateescape'), digest_size=8).hexdigest()}{suffix}"
