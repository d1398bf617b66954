"""One file a client's state: its name, and what a checkpoint says of it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fl_lightning.state.atomic_files import atomic_write, check_digest, make_folder


class Record(NamedTuple):
    """A state on disk. No two differ in content and agree in these, so a file may be linked and never changes."""

    client: int
    round: int
    stamp: int  # of the run that wrote it

    @property
    def name(self) -> str:
        """In folders of a thousand clients, which stay quick to list and to search."""
        return f"{self.client // 1000}/{self.client}.{self.round}.{self.stamp:x}.pt"


def check_files(saved: dict[str, Any], folder: Path) -> Iterator[str]:
    """What is wrong with the files that a checkpoint names, a line each.

    Args:
        saved: what the checkpoint stored.
        folder: of the files; where it is not there, they are looked for where they were written.
    """
    source, digests = folder if folder.is_dir() else Path(saved.get("folder", "")), saved_digests(saved)
    for record in named_records(saved):
        try:
            with naming_state(source, record):
                check_digest(source / record.name, digests.get(record.client))
        except ValueError as error:
            yield str(error)


@contextmanager
def naming_state(folder: Path, record: Record) -> Iterator[None]:
    """Name the file in an error of the block, which reads it."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{folder / record.name}, the state of client {record.client} from round {record.round}, cannot be read "
            f"({reason(error)}): put it back from a copy, or go on from an older checkpoint with ckpt_path"
        ) from error


def named_records(saved: dict[str, Any]) -> list[Record]:
    """Which files a checkpoint names."""
    return [Record(*row) for row in saved["index"].tolist()] if "index" in saved else []


def saved_digests(saved: dict[str, Any]) -> dict[int, int]:
    """The digest of each client's file that a checkpoint names."""
    if "index" not in saved:
        return {}
    return dict(zip(saved["index"][:, 0].tolist(), saved["digests"].tolist(), strict=True))


def link_file(source: Path, target: Path) -> None:
    """One file under two names, or a copy where the file system has no such thing."""
    make_folder(target.parent)
    try:
        os.link(source, target)
    except OSError:
        with atomic_write(target) as temporary:
            shutil.copyfile(source, temporary)


def reason(error: Exception) -> str:
    """The gist; torch explains itself at length."""
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0][:100]
