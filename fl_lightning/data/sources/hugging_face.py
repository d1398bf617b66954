"""Datasets of Hugging Face, by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fl_lightning.checks import check_choice, first_line
from fl_lightning.checks.extras import needing_extra
from fl_lightning.data.cache import Files, cached
from fl_lightning.data.samples import Dataset, Samples, numbered_classes
from fl_lightning.data.sources.images import check_size, decode, mode_of
from fl_lightning.data.sources.source import Source

# ``datasets`` is an extra, imported when a set is read; the types of its parts may not exist.


class HuggingFace(Source):
    """An image classification set of the Hugging Face hub, or of a local folder that ``datasets.load_dataset`` reads.

    Needs the extra ``huggingface``. The library ``datasets`` stores the files in its own folder, not under ``data.root``.

    Args:
        name: of the set or folder, such as ``ylecun/mnist``.
        config: name of the configuration, of sets that have several.
        train, test: names of the splits; without a test split there is no test set.
        image, label: columns; by default the first of an image and the first of class labels.
        client: column of the natural clients, such as ``writer_id`` of ``flwrlabs/femnist``.
        size: height and width of all images: the shorter side is scaled to it, and the middle is kept.

    Raises:
        ModuleNotFoundError: without the library.
    """

    def __init__(
        self,
        name: str,
        config: str | None = None,
        train: str = "train",
        test: str | None = "test",
        image: str | None = None,
        label: str | None = None,
        client: str | None = None,
        size: int | None = None,
    ) -> None:
        with needing_extra("huggingface", "data.source HuggingFace"):
            import datasets.exceptions
        self._library = datasets
        self.name, self.config, self.train, self.test = name, config, train, test
        self.image, self.label, self.client, self.size = image, label, client, check_size(size)

    def load(self, root: Path) -> Dataset:
        try:
            splits = self._library.load_dataset(self.name, self.config)
        except (OSError, ValueError, RuntimeError, self._library.exceptions.DatasetsError) as error:
            reason = first_line(error)
            raise FileNotFoundError(
                f"data.source {self.name} could not be loaded from Hugging Face ({reason}): check the name"
            ) from error
        for split in (self.train, self.test):
            if split is not None and split not in splits:
                raise ValueError(
                    f"data.source {self.name} has no split {split}, there are {', '.join(map(str, splits))}: name one of them, "
                    "or null where there is no test split"
                )
        parts = [splits[split] for split in (self.train, self.test) if split is not None]
        columns = self._columns(parts[0].features)
        fingerprint = "\n".join([*(part._fingerprint for part in parts), repr((*columns, self.size))])
        name = f"huggingface-{self.name.replace('/', '-')}"
        return cached(name, fingerprint, lambda files: self._decode(parts, files, *columns))

    def _columns(self, features: dict[str, Any]) -> tuple[str, str, str | None]:
        """The columns of images, labels and clients."""
        of_kind = {
            "image": [name for name, feature in features.items() if isinstance(feature, self._library.Image)],
            "label": [name for name, feature in features.items() if isinstance(feature, self._library.ClassLabel)],
        }
        for key, name in (("image", self.image), ("label", self.label), ("client", self.client)):
            if name is not None:
                check_choice(f"data.source.{key}", name, features, hint=f"the columns of {self.name}")
            if name is None and key in of_kind and not of_kind[key]:
                raise ValueError(f"data.source {self.name} has no column that is known to hold a {key}: set data.source.{key}")
        return self.image or of_kind["image"][0], self.label or of_kind["label"][0], self.client

    def _decode(self, parts: Sequence[Any], files: Files, image: str, label: str, client: str | None) -> Dataset:
        names = getattr(parts[0].features[label], "names", None)
        mode = mode_of(self._row(parts[0], 0)[image], f"data.source {self.name}: column {image}")
        samples = [self._decode_part(part, image, label, mode, file) for part, file in zip(parts, files.values(), strict=False)]
        if len(samples) == 1:
            samples.append(samples[0].none())
        classes = names or numbered_classes(*samples)
        train, test = samples
        return Dataset(train, test, tuple(classes), *((None, None) if client is None else self._owners(parts, client)))

    def _owners(self, parts: Sequence[Any], client: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The position of each sample's client among those of training samples, sorted, -1 without; None if all are without."""
        clients = parts[0][client][:]
        if None in clients:
            raise ValueError(
                f"data.source {self.name}: sample {clients.index(None)} has no {client}: choose another data.source.client"
            )
        names, owners = np.unique(clients, return_inverse=True)
        position = {name: i for i, name in enumerate(names.tolist())}
        tested = [position.get(name, -1) for part in parts[1:] if client in part.features for name in part[client][:]]
        return torch.from_numpy(owners), torch.tensor(tested) if max(tested, default=-1) >= 0 else None

    def _decode_part(self, part: Any, image: str, label: str, mode: str, file: Path) -> Samples:
        def read(i: int) -> tuple[Image.Image, int]:
            row = self._row(part, i)
            return row[image], row[label]

        return decode(read, len(part), lambda i: f"data.source {self.name}: sample {i}", self.size, mode, file)

    def _row(self, part: Any, i: int) -> dict[str, Any]:
        try:
            return part[i]
        except Exception as error:  # Pillow's decoders, which the library uses, can raise anything
            reason = " ".join(str(error).split())
            raise ValueError(
                f"data.source {self.name}: sample {i} cannot be read as an image ({reason}): replace or delete it"
            ) from error
