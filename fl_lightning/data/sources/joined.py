"""Several sources as one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
import torchvision.transforms.v2.functional as transforms
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from fl_lightning.checks import check_choice, check_memory, check_range
from fl_lightning.data.mapped_files import empty_rows
from fl_lightning.data.samples import Dataset, Part, Samples, check_has_classes, in_parts
from fl_lightning.data.scaling import channel_statistics, normalise
from fl_lightning.data.sources.by_name import open_source
from fl_lightning.data.sources.image_folder import ImageFolder
from fl_lightning.data.sources.source import Source


class Joined(Source):
    """Several sources as one set of colour images of one size, each normalised separately.

    Smaller images get a black border, grey ones three equal channels. The class ``3`` of MNIST is called ``MNIST/3``. A source
    that does not exist and cannot be downloaded is left out, with a message; if its folder exists, it must be complete. Cut by
    a :class:`~fl_lightning.tasks.TaskStream` with ``by: sources``, eight sets are NonIID-50 of the FedWeIT paper (Yoon et al.,
    ICML 2021, Section 5).

    Samples are float16 and already normalised, as no single factor and summand normalises the uint8 images of all sets. Up to 4
    deviations from its mean a value is off by at most 2^-10 of a deviation, which is one sixteenth of a grey level if the
    deviation is a quarter of the range. The 450,000 images of NonIID-50 take 2.8 GB, 1.4 GB as uint8 and 5.5 GB as float32.

    Args:
        sources: sources or their names, by the names that their classes get. Images in class folders are in the folder of that
            name under ``data.root``, other sources in their usual place.
        mean, std: one value or three, by the name of a set, for pixels in [0, 1]; otherwise measured on its training images.
        size: height and width.

    Raises:
        ValueError: if there is no source, or ``mean`` and ``std`` are not of the same sets.
    """

    def __init__(
        self,
        sources: Mapping[str, str | Source],
        mean: Mapping[str, Sequence[float]] | None = None,
        std: Mapping[str, Sequence[float]] | None = None,
        size: int = 32,
    ) -> None:
        mean, std = mean or {}, std or {}
        if not sources:
            raise ValueError("data.source.sources is empty: name at least one source")
        check_range("data.source.size", size, at_least=1, hint="height and width in pixels")
        for key, names in (("mean", mean), ("std", std)):
            for name in names:
                check_choice(f"data.source.{key}", name, sources, hint="the names in data.source.sources")
        for name in (*mean, *std):
            if not len(mean.get(name, ())) == len(std.get(name, ())) in (1, 3) or min(std[name]) <= 0:
                raise ValueError(
                    f"data.source.mean of {name} is {mean.get(name)} and std is {std.get(name)}: give both, one value or three "
                    "each, std above 0"
                )
        self.sources = {name: open_source(source, f"data.source.sources.{name}") for name, source in sources.items()}
        self.mean, self.std, self.size = mean, std, size

    def load(self, root: Path) -> Dataset:
        loaded = self._load_all(root)
        classes = [(name, label) for name, dataset in loaded.items() for label in dataset.classes]
        scales = {name: self._scale(name, dataset.train.inputs) for name, dataset in loaded.items()}
        train, test = (self._join(loaded, part, scales) for part in get_args(Part))
        return Dataset(train, test, tuple(map("/".join, classes)), sources=tuple(name for name, _ in classes))

    def _load_all(self, root: Path) -> dict[str, Dataset]:
        """The sources that can be loaded."""
        loaded = {}
        for name, source in self.sources.items():
            folder = root / name if _reads_folders(source) else root
            try:
                loaded[name] = source.load(folder)
            except FileNotFoundError:
                if folder != root and folder.is_dir():
                    raise  # not missing, but broken
                continue
            check_has_classes(loaded[name], "Joined", f"data.source.sources.{name}")
            self._check(name, loaded[name].train.inputs)
        missing = ", ".join(name for name in self.sources if name not in loaded)
        if not loaded:
            raise FileNotFoundError(
                f"data.root is {root}, which holds none of data.source.sources, and none could be fetched: {missing}: set "
                "data.root to the folder that holds them, or connect to a network"
            )
        if missing:
            rank_zero_only(print)(f"Data: left out, neither under data.root {root} nor to be fetched: {missing}")
        return loaded

    def _check(self, name: str, inputs: Tensor) -> None:
        if inputs.dtype != torch.uint8 or inputs.shape[1] not in (1, 3):
            kind = f"{str(inputs.dtype).removeprefix('torch.')} of shape {tuple(inputs.shape[1:])}"
            raise ValueError(f"data.source.sources has {name} with samples {kind}, must be uint8 images, grey or in colour")
        if max(inputs.shape[2:]) > self.size:
            pixels = "x".join(map(str, inputs.shape[2:]))
            raise ValueError(
                f"data.source.size is {self.size}, but the images of {name} have {pixels} pixels: raise it, or give "
                f"{name} a smaller size"
            )

    def _scale(self, name: str, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Factor and summand of the channels of a set."""
        statistics = channel_statistics(inputs, _in_colour, self.mean.get(name), self.std.get(name))
        factor, summand = statistics.scale(inputs)  # pyright: ignore[reportOptionalMemberAccess]  # uint8 images have them
        return factor.float(), summand.float()

    def _join(self, loaded: Mapping[str, Dataset], part: str, scales: Mapping[str, tuple[Tensor, Tensor]]) -> Samples:
        """The training or the test samples of all sets, with labels that continue from set to set."""
        samples = {name: getattr(dataset, part) for name, dataset in loaded.items()}
        check_memory(2 * 3 * self.size**2, f"data.source.size is {self.size}: each of the {part} images would", "lower it")
        inputs = empty_rows((sum(map(len, samples.values())), 3, self.size, self.size), torch.float16)
        targets, row, num_classes = [], 0, 0
        for name, dataset in loaded.items():
            joined = in_parts(inputs[row : row + len(samples[name])])
            given = samples[name].inputs.split([*map(len, joined)])
            for rows, images in zip(joined, given, strict=True):
                rows.copy_(normalise(self._padded(images), scales[name], torch.float32))
            row += len(samples[name])
            targets.append(samples[name].targets + num_classes)
            num_classes += len(dataset.classes)
        return Samples(inputs, torch.cat(targets))

    def _padded(self, images: Tensor) -> Tensor:
        """(n, 3, size, size), the images with a black border."""
        return _in_colour(transforms.center_crop(images, [self.size, self.size]))


def _reads_folders(source: Any) -> bool:
    """Whether a source reads images in class folders, by itself or through others such as SomeClasses."""
    while (inner := getattr(source, "source", None)) is not None:
        source = inner
    return isinstance(source, ImageFolder)


def _in_colour(images: Tensor) -> Tensor:
    """(n, 3, ...) from one or three channels; aliases ``images``."""
    return images.expand(-1, 3, *images.shape[2:])
