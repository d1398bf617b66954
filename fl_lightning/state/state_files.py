"""The file of a client's state: its name, and its entry in a checkpoint."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fl_lightning.checks import first_line
from fl_lightning.state.atomic_files import atomic_write, check_digest, make_folder


class Record(NamedTuple):
    """A state on disk. Equal records have equal content, so a file can be linked and never changes."""

    client: int
    round: int
    stamp: int  # of the run that wrote it

    @property
    def name(self) -> str:
        """Path below the store's folder, in folders of a thousand clients, which stay fast to list and to search."""
        return f"{self.client // 1000}/{self.client}.{self.round}.{self.stamp:x}.pt"


def check_files(saved: dict[str, Any], folder: Path) -> Iterator[str]:
    """Faults of the files in a folder that a checkpoint with these states names, a line each."""
    digests = saved_digests(saved)
    for record in named_records(saved):
        try:
            with naming_state(folder, record):
                check_digest(folder / record.name, digests.get(record.client))
        except ValueError as error:
            yield str(error)


def states_folder(saved: dict[str, Any], checkpoint: Path) -> Path:
    """The folder of the files that a checkpoint names: in its run, which can have moved, otherwise where they were written."""
    here = checkpoint.absolute().parent.parent / "client_states"
    return here if here.is_dir() else Path(saved.get("folder", ""))


@contextmanager
def naming_state(folder: Path, record: Record) -> Iterator[None]:
    """Name the file in an error of the block that reads it."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{folder / record.name}, the state of client {record.client} from round {record.round}, cannot be read "
            f"({reason(error)}): put it back from a copy, or resume from an older checkpoint with ckpt_path"
        ) from error


def named_records(saved: dict[str, Any]) -> list[Record]:
    """The files that a checkpoint names."""
    return [Record(*row) for row in saved["index"].tolist()] if "index" in saved else []


def saved_digests(saved: dict[str, Any]) -> dict[int, int]:
    """The digest of each client's file that a checkpoint names."""
    if "index" not in saved:
        return {}
    return dict(zip(saved["index"][:, 0].tolist(), saved["digests"].tolist(), strict=True))


def link_file(source: Path, target: Path) -> None:
    """A second name for a file, or a copy if the file system has no links."""
    make_folder(target.parent)
    try:
        os.link(source, target)
    except OSError:
        with atomic_write(target) as temporary:
            shutil.copyfile(source, temporary)


def reason(error: Exception) -> str:
    """The first line of an error, shortened: torch's messages are long."""
    return (getattr(error, "strerror", None) or first_line(error))[:100]
