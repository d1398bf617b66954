"""Nets of other libraries in our two parts, and back: names of weights, and folders that the library reads."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from fl_lightning.functional.aggregation import State
from fl_lightning.models.network import Network


class LibraryNet(Network, ABC):
    """A net of another library: its class layer is ``classifier``, everything before it ``features``.

    Args:
        net: changed in place.
        head: the name of its class layer.
        name: the library's name of the net.
    """

    drawn: frozenset[str] = frozenset()
    """Weights before the class layer that the pretrained weights lack."""

    def __init__(self, net: nn.Module, head: str, name: str) -> None:
        super().__init__()
        self.classifier = net.get_submodule(head)
        net.set_submodule(head, nn.Identity())
        self.features, self._head, self.name = net, head, name

    def whole(self) -> nn.Module:
        """A copy of the library's net, with its class layer and the library's names."""
        copied = copy.deepcopy(self)
        copied.features.set_submodule(self._head, copied.classifier)
        return copied.features

    def library_name(self, name: str) -> str:
        """The library's name of a weight or buffer."""
        part, _, rest = name.partition(".")
        return rest if part == "features" else f"{self._head}.{rest}"

    def our_names(self, stored: State) -> State:
        """Weights and buffers, which may have the library's names, by ours; those with our names as they are."""
        present = self.state_dict().keys()
        if any(name.startswith("features.") and name in present for name in stored):
            return stored
        return {self._our_name(name): tensor for name, tensor in self._read(stored).items()}

    def _our_name(self, name: str) -> str:
        head = f"{self._head}."
        return f"classifier.{name.removeprefix(head)}" if name.startswith(head) else f"features.{name}"

    def _read(self, stored: State) -> State:
        """Weights and buffers of a file of the library, by the names in its net."""
        return stored

    @abstractmethod
    def save(self, folder: Path, classes: Sequence[str]) -> None:
        """Write the library's net as ``config.json``, with the names of its classes, if any, and ``model.safetensors``."""

    @property
    @abstractmethod
    def reading(self) -> str:
        """The library's call that reads such a folder, ``FOLDER``."""
