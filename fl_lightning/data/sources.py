"""Where samples come from. A source is one small class: ``load(root)`` gives a :class:`Dataset`."""

import difflib
import inspect
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
import torchvision.datasets
from filelock import FileLock
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

from fl_lightning.data.cache import cached
from fl_lightning.data.samples import Dataset, Samples


class Source(ABC):
    """A labelled data set with a training and a test part."""

    @abstractmethod
    def load(self, root: Path) -> Dataset:
        """Read the data set; ``root`` is ``data.root``.

        Raises:
            FileNotFoundError: if the data is not there and cannot be fetched.
            ValueError: if it cannot be read as labelled samples.
        """


class Arrays(Source):
    """Tensors, or NumPy arrays, in memory.

    Args:
        inputs: (n, ...) uint8 images (n, channels, height, width) or floats of any shape.
        targets: (n,) class indices.
        test_inputs, test_targets: the same for the test set; none means no test set.
        classes: names in label order; by default "0", "1", ... up to the largest label.
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        test_inputs: Tensor | None = None,
        test_targets: Tensor | None = None,
        classes: Sequence[str] | None = None,
    ) -> None:
        inputs, targets = torch.as_tensor(inputs), torch.as_tensor(targets)
        if (test_inputs is None) != (test_targets is None):
            given = "test_inputs" if test_targets is None else "test_targets"
            raise ValueError(f"data.source Arrays has {given} alone: give test_inputs and test_targets, or neither")
        if test_inputs is None or test_targets is None:
            test_inputs, test_targets = inputs[:0], targets[:0]
        test_inputs, test_targets = torch.as_tensor(test_inputs), torch.as_tensor(test_targets)
        largest = max((int(part.max()) for part in (targets, test_targets) if len(part) > 0), default=-1)
        names = tuple(classes) if classes is not None else tuple(str(label) for label in range(largest + 1))
        self._dataset = Dataset(Samples(inputs, targets.long()), Samples(test_inputs, test_targets.long()), names)

    def load(self, root: Path) -> Dataset:
        return self._dataset


class Digits(Source):
    """scikit-learn's handwritten digits: 1,797 grey images of 8x8, ten classes, part of the library, no network.

    A fifth of each class, chosen once and for all, is the test set.
    """

    def load(self, root: Path) -> Dataset:
        images, labels = load_digits(return_X_y=True)
        # Stored values are 0 to 16; uint8 images reach from 0 to 255.
        pixels = np.rint(images * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
        train_x, test_x, train_y, test_y = train_test_split(pixels, labels, test_size=0.2, stratify=labels, random_state=0)
        return Dataset(_samples(train_x, train_y), _samples(test_x, test_y), tuple(str(digit) for digit in range(10)))


class ImageFolder(Source):
    """Images in class folders: ``root/train/<class>/...`` and ``root/test/<class>/...``.

    Class folders in alphabetical order are labels 0, 1, ...; all images have one size. The first training image decides
    between grey (one channel) and colour (three).
    """

    def load(self, root: Path) -> Dataset:
        for folder in (root, root / "train", root / "test"):
            if not folder.is_dir():
                raise FileNotFoundError(
                    f"data.root is {root}, but the folder {folder} does not exist: image_folder needs "
                    "root/train/<class>/ and root/test/<class>/"
                )
        train, test = (_list_images(root / part) for part in ("train", "test"))
        if train.keys() != test.keys():
            differing = ", ".join(sorted(train.keys() ^ test.keys()))
            raise ValueError(
                f"data.root is {root}: train and test differ in their class folders ({differing}): make them equal"
            )
        paths = [path for part in (train, test) for files in part.values() for path in files]
        for name, part in (("train", train), ("test", test)):
            if not any(part.values()):
                raise FileNotFoundError(f"data.root is {root}, but root/{name}/<class>/ holds no file: put images there")
        stamps = ((path.relative_to(root), path.stat()) for path in paths)
        files = "\n".join(f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stamps)
        fingerprint = f"{root.resolve()}\n{files}"
        return cached(f"image_folder-{root.resolve().name}", fingerprint, lambda: _decode_folders(train, test))


class TorchvisionDataset(Source):
    """A classification set of torchvision by its class name, downloaded where it does not lie under ``root`` yet.

    Args:
        name: any class of ``torchvision.datasets`` with ``train=True/False`` or ``split="train"/"test"``.

    Raises:
        ValueError: if torchvision has no such class or it takes neither argument.
    """

    def __init__(self, name: str) -> None:
        known = [key for key, value in vars(torchvision.datasets).items() if inspect.isclass(value) and _part_argument(value)]
        if name not in known:
            hint = difflib.get_close_matches(name, ["digits", "image_folder", *known], n=1)
            cure = f"did you mean {hint[0]}?" if hint else f"try one of {', '.join(sorted(known))}"
            raise ValueError(
                f"data.source is {name!r}, neither digits, image_folder nor a classification set of torchvision: {cure}"
            )
        self.name = name
        self._open = getattr(torchvision.datasets, name)

    def load(self, root: Path) -> Dataset:
        with _root_lock(root):
            train, test = self._parts(root)
        # The sets are fixed files with known checksums: place, sizes and a few samples tell two copies apart.
        few = [np.asarray(part[i][0]).tobytes() for part in (train, test) for i in (0, len(part) // 2, len(part) - 1)]
        fingerprint = f"{train}\n{test}\n{blake2b(b''.join(few)).hexdigest()}"
        return cached(self.name, fingerprint, lambda: self._decode(train, test))

    def _parts(self, root: Path) -> list[torch.utils.data.Dataset]:
        argument, values = _part_argument(self._open)
        try:
            return [self._open(root, **{argument: value}, download=False) for value in values]
        except (RuntimeError, FileNotFoundError):
            self._download(root, argument, values)
        return [self._open(root, **{argument: value}, download=False) for value in values]

    def _download(self, root: Path, argument: str, values: tuple[object, object]) -> None:
        """Fetch into a folder beside the final place, moved when whole, so that a broken download leaves nothing."""
        if root.exists() and not root.is_dir():
            raise FileNotFoundError(f"data.root is {root}, which is a file: give a folder")
        made = [folder for folder in (root, *root.parents) if not folder.exists()]
        staging = root / ".download"
        shutil.rmtree(staging, ignore_errors=True)  # what a killed download left
        try:
            staging.mkdir(parents=True)
            for value in values:
                self._open(staging, **{argument: value}, download=True)
            shutil.copytree(staging, root, dirs_exist_ok=True, copy_function=os.replace)
        except (OSError, RuntimeError) as error:
            shutil.rmtree(staging, ignore_errors=True)
            for folder in made:
                with suppress(OSError):
                    folder.rmdir()
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise FileNotFoundError(
                f"data.source {self.name} does not lie under data.root {root} and could not be downloaded "
                f"({reason}): set data.root to the folder that holds it, or connect to a network"
            ) from error
        shutil.rmtree(staging)

    def _decode(self, train: Iterable, test: Iterable) -> Dataset:
        parts = [
            _stack((np.asarray(image), label, f"sample {i}") for i, (image, label) in enumerate(part)) for part in (train, test)
        ]
        names = getattr(train, "classes", None) or [str(label) for label in range(int(parts[0].targets.max()) + 1)]
        return Dataset(*parts, classes=tuple(str(name) for name in names))


def open_source(source: str | Source) -> Source:
    """A source object from the value of ``data.source``: an object as it is, or a name."""
    if isinstance(source, Source):
        return source
    named: dict[str, Callable[[], Source]] = {"digits": Digits, "image_folder": ImageFolder}
    return named[source]() if source in named else TorchvisionDataset(source)


def _part_argument(dataset_class: type) -> tuple[str, tuple[object, object]] | None:
    """How a torchvision class is asked for its training and test parts, or None if it has no such two parts."""
    parameters = inspect.signature(dataset_class.__init__).parameters
    if "download" not in parameters:
        return None
    if "split" in parameters and "train" not in parameters:
        return "split", ("train", "test")
    return ("train", (True, False)) if "train" in parameters and "split" not in parameters else None


def _root_lock(root: Path) -> FileLock:
    """One process at a time downloads into ``root``; the lock lies in the temporary folder since ``root`` may be read-only."""
    name = blake2b(f"{os.getuid()} {root.resolve()}".encode(), digest_size=8).hexdigest()
    return FileLock(Path(tempfile.gettempdir()) / f"fl_lightning-{name}.lock")


def _list_images(folder: Path) -> dict[str, list[Path]]:
    """The images of each class folder, in alphabetical order; hidden entries are no images."""
    classes = sorted(entry for entry in _visible(folder) if entry.is_dir())
    return {entry.name: sorted(path for path in _visible(entry) if path.is_file()) for entry in classes}


def _visible(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if not entry.name.startswith(".")]


def _decode_folders(train: dict[str, list[Path]], test: dict[str, list[Path]]) -> Dataset:
    first = next(path for files in train.values() for path in files)
    mode = "L" if _open_image(first, None).ndim == 2 else "RGB"
    parts = []
    for part in (train, test):
        paths = [path for files in part.values() for path in files]
        labels = [label for label, files in enumerate(part.values()) for _ in files]
        with ThreadPoolExecutor() as pool:
            images = pool.map(lambda path: _open_image(path, mode), paths)
            parts.append(_stack(zip(images, labels, map(str, paths), strict=True)))
    return Dataset(*parts, classes=tuple(train))


def _open_image(path: Path, mode: str | None) -> NDArray[np.uint8]:
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert(mode or ("L" if image.mode == "L" else "RGB")))
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"data.root: {path} cannot be read as an image ({error}): replace or delete it") from error


def _stack(images: Iterable[tuple[NDArray[np.uint8], int, str]]) -> Samples:
    """Images of one size, (height, width) or (height, width, channels), as samples."""
    pixels: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    for image, label, name in images:
        if pixels and image.shape != pixels[0].shape:
            raise ValueError(
                f"data.source: {name} has shape {image.shape}, the first image {pixels[0].shape}: resize them to one size"
            )
        pixels.append(image)
        labels.append(int(label))
    stacked = np.stack(pixels)
    channels_first = stacked[:, None] if stacked.ndim == 3 else stacked.transpose(0, 3, 1, 2)
    return _samples(np.ascontiguousarray(channels_first), np.asarray(labels))


def _samples(inputs: NDArray[np.uint8], labels: NDArray[np.int64]) -> Samples:
    return Samples(torch.from_numpy(inputs), torch.from_numpy(labels).long())
