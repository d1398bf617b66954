"""The common base of sources, and the kind of a path: a source opens only regular files, as others can block or never end."""

import os
import stat
from abc import ABC, abstractmethod
from pathlib import Path

from fl_lightning.data.samples import Dataset

_KINDS = {stat.S_IFREG: "a file", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


class Source(ABC):
    """A labelled dataset with a training and a test part."""

    @abstractmethod
    def load(self, root: Path) -> Dataset:
        """Read the dataset; ``root`` is ``data.root``.

        Raises:
            FileNotFoundError: if the data do not exist and cannot be downloaded.
            ValueError: if it cannot be read as labelled samples.
        """


def kind_of(path: str | os.PathLike[str]) -> str:
    """``a file``, ``a folder``, ``a pipe``, ``a socket``, ``a device`` or ``a link to nothing``; other links are followed."""
    try:
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode), "a device")
    except OSError:
        if os.path.islink(path):
            return "a link to nothing"
        raise


def check_regular(path: str | os.PathLike[str]) -> None:
    """Refuse a path under ``data.root`` that is not a regular file."""
    if (kind := kind_of(path)) != "a file":
        raise ValueError(f"data.root: {os.fspath(path)} is {kind}, must be a file: delete it")
