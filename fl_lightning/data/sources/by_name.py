"""Sources by the value of ``data.source``."""

import re
from collections.abc import Callable
from pathlib import Path

from fl_lightning.checks import ArgumentError, check_file, under_keys
from fl_lightning.data.sources.arrays import Npz
from fl_lightning.data.sources.digits import Digits
from fl_lightning.data.sources.image_folder import ImageFolder
from fl_lightning.data.sources.leaf import Leaf
from fl_lightning.data.sources.source import Source
from fl_lightning.data.sources.torchvision_dataset import TorchvisionDataset

_NAMED: dict[str, Callable[[], Source]] = {"digits": Digits, "image_folder": ImageFolder, "leaf": Leaf}


def open_source(source: str | Source, key: str = "data.source") -> Source:
    """A source object from the value of ``data.source``: an object as it is, or a name.

    A name is ``digits``, ``image_folder``, ``leaf``, a file that ends in ``.npz``, or a set of torchvision, with a slash and
    its split if it has several: ``CIFAR10``, ``EMNIST/digits``.

    Args:
        key: of the command line that gives it, for messages.

    Raises:
        FileNotFoundError: if there is no such ``.npz`` file.
        ValueError: if it is neither an object nor such a name.
    """
    if isinstance(source, Source):
        return source
    if not isinstance(source, str):
        given = repr(source) if isinstance(source, int) else f"of type {type(source).__name__}"
        cure = "give 'digits', or fl_lightning.data.Arrays(inputs, targets)"
        raise ArgumentError(key, f"is {given}, must be a source or the name of one: {cure}")
    if source in _NAMED:
        return _NAMED[source]()
    if source.endswith(".npz"):
        check_file(key, source, "give a .npz file")
        return Npz(source)
    if re.fullmatch(r"\w+(\.\w+)+", source) and not Path(source).exists():
        needed = "which cannot be imported or does not derive from fl_lightning.data.Source"
        raise ArgumentError(key, f"is {source!r}, {needed}: correct the name or the class")
    name, _, split = source.partition("/")
    with under_keys({"data.source": key}):
        return TorchvisionDataset(name, split or None)
