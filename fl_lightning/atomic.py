"""Files that are there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, which takes its place when the block ends without an error.

    The data is on disk before the name changes, so a kill or a power cut leaves the old file or the new one, never half of
    one; an error in the block leaves the old one and no temporary file.

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
        raise OSError(
            f"{path} could not be written ({error.strerror or error}): free some space or choose another folder"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
