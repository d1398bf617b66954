"""The common base of sources."""

from abc import ABC, abstractmethod
from pathlib import Path

from fl_lightning.data.samples import Dataset


class Source(ABC):
    """A labelled dataset with a training and a test part."""

    @abstractmethod
    def load(self, root: Path) -> Dataset:
        """Read the dataset; ``root`` is ``data.root``.

        Raises:
            FileNotFoundError: if the data do not exist and cannot be downloaded.
            ValueError: if it cannot be read as labelled samples.
        """
