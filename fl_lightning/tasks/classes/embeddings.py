"""Embeddings of class names, from a file that a user writes with a text model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fl_lightning.checks import check_file
from fl_lightning.data.archives import read_archive

_KEY = "model.tasks.embeddings"
_CURE = "write one with numpy.savez(FILE, classes=NAMES, embeddings=NUMBERS), as docs/arriving_classes.md shows"


class ClassEmbeddings:
    """Of a ``.npz`` file with ``classes``, C names, and ``embeddings``, (C, width); reading it runs no code.

    Args:
        path: the file.

    Raises:
        FileNotFoundError: if it does not exist.
        ValueError: if it is not such a file, names a class twice, or has a number that is not finite.
    """

    def __init__(self, path: str) -> None:
        check_file(_KEY, path, _CURE)
        self.path = path
        arrays = read_archive(_KEY, Path(path))
        if set(arrays) != {"classes", "embeddings"}:
            raise ValueError(f"{_KEY} is {path}, which has {', '.join(sorted(arrays)) or 'no arrays'}: {_CURE}")
        names, numbers = arrays["classes"], arrays["embeddings"]
        if names.ndim != 1 or names.dtype.kind not in "Uiu":
            raise ValueError(f"{_KEY} is {path}, whose classes are {names.dtype} of shape {names.shape}, not names: {_CURE}")
        if numbers.dtype.kind not in "fiu" or numbers.ndim != 2 or len(numbers) != len(names) or numbers.shape[1] == 0:
            raise ValueError(
                f"{_KEY} is {path}, whose embeddings are {numbers.dtype} of shape {numbers.shape}, not a row of numbers for "
                f"each of its {len(names)} classes: {_CURE}"
            )
        self._numbers = torch.from_numpy(numbers.astype(np.float64))
        self._row = {str(name): row for row, name in enumerate(names.tolist())}
        if len(self._row) < len(names):
            twice = next(str(name) for name in names.tolist() if names.tolist().count(name) > 1)
            raise ValueError(f"{_KEY} is {path}, which has class {twice} twice: leave one out")
        for name, row in self._row.items():
            if not self._numbers[row].float().isfinite().all():
                raise ValueError(f"{_KEY} is {path}, whose embedding of class {name} is not finite: write it again")

    @property
    def width(self) -> int:
        """Numbers of an embedding."""
        return self._numbers.shape[1]

    def of(self, classes: Sequence[str]) -> Tensor:
        """(C, width) float64, of these classes in order.

        Raises:
            ValueError: if the file lacks one.
        """
        if missing := [name for name in classes if name not in self._row]:
            raise ValueError(
                f"{_KEY} is {self.path}, which has no class {missing[0]} of data.source: add its embedding, under this name"
            )
        return self._numbers[[self._row[name] for name in classes]]
