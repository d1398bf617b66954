"""Sources by the value of ``data.source``."""

from collections.abc import Callable

from fl_lightning.data.sources.arrays import Npz
from fl_lightning.data.sources.digits import Digits
from fl_lightning.data.sources.image_folder import ImageFolder
from fl_lightning.data.sources.leaf import Leaf
from fl_lightning.data.sources.source import Source
from fl_lightning.data.sources.torchvision_dataset import TorchvisionDataset

_NAMED: dict[str, Callable[[], Source]] = {"digits": Digits, "image_folder": ImageFolder, "leaf": Leaf}


def open_source(source: str | Source) -> Source:
    """A source object from the value of ``data.source``: an object as it is, or a name.

    A name is ``digits``, ``image_folder``, ``leaf``, a file that ends in ``.npz``, or a set of torchvision, with a slash and
    its split if it has several: ``CIFAR10``, ``EMNIST/digits``.
    """
    if isinstance(source, Source):
        return source
    if source in _NAMED:
        return _NAMED[source]()
    if source.endswith(".npz"):
        return Npz(source)
    name, _, split = source.partition("/")
    return TorchvisionDataset(name, split or None)
