"""Embeddings of class names for tests, in a file that lasts as long as the process."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

_FOLDER = TemporaryDirectory()


@cache
def embeddings_of(classes: Iterable[str], width: int = 4) -> str:
    """The file of some classes; their order there is not that of the data, and one class more has a row."""
    path = Path(_FOLDER.name, f"{'-'.join(classes)}-{width}.npz")
    names = ["another", *reversed(list(classes))]
    numbers = np.random.default_rng(0).normal(scale=0.4, size=(len(names), width))
    np.savez(path, classes=names, embeddings=numbers)
    return str(path)
