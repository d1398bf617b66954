"""Image files in class folders, or in a list of a CSV file."""

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

import torch
from PIL import Image

from fl_lightning.checks.csv_files import read_rows
from fl_lightning.data.cache import Files, cached
from fl_lightning.data.samples import Dataset, Part, Samples
from fl_lightning.data.sources.images import check_size, decode, mode_of, open_image
from fl_lightning.data.sources.source import Source, check_regular, kind_of

_INDEX = "data.source.index"


class ListedImage(NamedTuple):
    """An image of one part of a dataset."""

    path: str
    label: str
    client: str  # empty: unknown
    name: str  # for messages, with the line that lists it
    stamp: str  # size and time of change


class ImageFolder(Source):
    """Images in class folders, ``root/train/<class>/...`` and ``root/test/<class>/...``, or as a CSV file lists them.

    Class folders in alphabetical order are labels 0, 1, ...; without the folders ``train`` and ``test``,
    ``root/<class>/...`` are all for training. The first training image decides between grey (one channel) and colour (three).
    All images must have one size, unless ``size`` sets it. Links to files and folders are followed, even out of the folder.

    Args:
        index: CSV file with the columns ``path,label`` and optionally ``client,split``: the image under ``root``, the name of
            its class (names that are all whole numbers are sorted as numbers), its client, and ``train`` or ``test``. The
            partition :class:`~fl_lightning.data.Natural` uses these clients, and tests their personal models on their own test
            images. A path must not leave ``root``, or lead to the file of another path.
        size: height and width of all images: the shorter side is scaled to it, and the middle is kept.
    """

    def __init__(self, index: str | None = None, size: int | None = None) -> None:
        self.index, self.size = None if index is None else Path(index), check_size(size)

    def load(self, root: Path) -> Dataset:
        if not root.is_dir():
            raise FileNotFoundError(f"data.root is {root}, but the folder {root} does not exist: give that of the images")
        root = root.resolve()  # one cache, in whatever way the folder is given
        if self.index is None:
            parts, classes = _in_folders(root)
        else:
            parts = _read_index(self.index, root)
            classes = _sorted_names({image.label for part in parts.values() for image in part})
        listed = "\n".join(f"{image.path} {image.stamp}" for part in parts.values() for image in part)
        known = {name: [[image.label for image in part], [image.client for image in part]] for name, part in parts.items()}
        fingerprint = f"{root}\n{self.size}\n{classes}\n{listed}\n{'' if self.index is None else known}"
        return cached(f"image_folder-{root.name}", fingerprint, lambda files: self._decode(parts, classes, files))

    def _decode(self, parts: Mapping[Part, list[ListedImage]], classes: tuple[str, ...], files: Files) -> Dataset:
        label_of, train = {name: label for label, name in enumerate(classes)}, parts["train"]
        mode = mode_of(open_image(train[0].path, train[0].name), train[0].name)
        samples = [self._decode_part(part, label_of, mode, files[name]) for name, part in parts.items() if part]
        if len(samples) == 1:
            samples.append(samples[0].none())
        owners, test_owners = (_owners(part, train) for part in parts.values())
        return Dataset(*samples, classes=classes, owners=owners, test_owners=test_owners)

    def _decode_part(self, part: list[ListedImage], label_of: dict[str, int], mode: str, file: Path) -> Samples:
        def read(i: int) -> tuple[Image.Image, int]:
            image = open_image(part[i].path, part[i].name)
            if _stamp(part[i].path) != part[i].stamp:
                raise ValueError(f"{part[i].name} was changed while the images were decoded: start again")
            return image, label_of[part[i].label]

        return decode(read, len(part), lambda i: part[i].name, self.size, mode, file)


def _stamp(path: str) -> str:
    stat = os.stat(path)
    return f"{stat.st_size} {stat.st_mtime_ns}"


def _in_folders(root: Path) -> tuple[dict[Part, list[ListedImage]], tuple[str, ...]]:
    """The images of ``root/train`` and ``root/test``, or of ``root`` itself if it has neither, and the classes."""
    there = [name for name in get_args(Part) if (root / name).is_dir()]
    if len(there) == 1:
        missing = root / ("test" if there == ["train"] else "train")
        raise FileNotFoundError(
            f"data.root is {root}, but the folder {missing} does not exist: image_folder needs root/train/<class>/ and "
            "root/test/<class>/, or only root/<class>/"
        )
    by_class = {name: _list_images(root / name) for name in there} or {"train": _list_images(root)}
    if there and by_class["train"].keys() != by_class["test"].keys():
        differing = ", ".join(sorted(by_class["train"].keys() ^ by_class["test"].keys()))
        raise ValueError(f"data.root is {root}: train and test differ in their class folders ({differing}): make them equal")
    for name, folders in by_class.items():
        if not any(folders.values()):
            expected = f"root/{name}/<class>/" if there else "root/<class>/"
            raise FileNotFoundError(f"data.root is {root}, but {expected} holds no file: put images there")
    parts = {part: list[ListedImage]() for part in get_args(Part)}
    for name, folders in by_class.items():
        for label, paths in folders.items():
            parts[name] += [ListedImage(path, label, "", f"data.root: {path}", _stamp(path)) for path in paths]
    return parts, tuple(by_class["train"])


def _list_images(folder: Path) -> dict[str, list[str]]:
    """The images of each class folder and the folders in it, in alphabetical order, without hidden entries."""
    classes = [entry for entry in _visible(folder) if kind_of(entry) == "a folder"]
    return {entry.name: list(_files(entry, [os.path.realpath(folder)])) for entry in classes}


def _files(folder: os.DirEntry, above: Sequence[str]) -> Iterator[str]:
    """The files of a folder and the folders in it; ``above``: the real paths of the folders that contain it."""
    above = [*above, os.path.realpath(folder)]
    if above[-1] in above[:-1]:
        raise ValueError(f"data.root: {folder.path} is a link to a folder that contains it: delete it")
    for entry in _visible(folder):
        if entry.is_file(follow_symlinks=False):  # known from the folder, without access to the file
            yield entry.path
        elif kind_of(entry) == "a folder":
            yield from _files(entry, above)
        else:
            check_regular(entry)
            yield entry.path


def _visible(folder: Path | os.DirEntry) -> list[os.DirEntry]:
    with os.scandir(folder) as entries:  # a hundred thousand paths as objects would take seconds
        return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)


def _sorted_names(names: set[str]) -> tuple[str, ...]:
    """Names in alphabetical order, or by value if all are whole numbers."""
    return tuple(sorted(sorted(names), key=int if all(name.isdecimal() for name in names) else str))


def _owners(images: Sequence[ListedImage], training: Sequence[ListedImage]) -> torch.Tensor | None:
    """The position of each image's client among those of training images, sorted by name, -1 without a client; None if no
    client is known."""
    if not any(image.client for image in images):
        return None
    position = {name: i for i, name in enumerate(_sorted_names({image.client for image in training}))}
    return torch.tensor([position.get(image.client, -1) for image in images])


def _read_index(index: Path, root: Path) -> dict[Part, list[ListedImage]]:
    """``train`` and ``test`` of a CSV file with the columns ``path,label`` and optionally ``client,split``.

    Refuses, with file and line, a missing column or image, a path out of ``root``, a file that is listed twice, and a client
    with only test images.
    """
    parts = {part: list[ListedImage]() for part in get_args(Part)}
    line_of_file: dict[str, int] = {}
    folder, real_folder = os.path.abspath(root), functools.cache(os.path.realpath)  # for each image it would take seconds
    line_of_client: dict[str, int] = {}
    for line, row in read_rows(index, _INDEX, ("path", "label"), ("client", "split")):
        name, split, client = row["path"], row.get("split", "train"), row.get("client", "")
        path = os.path.normpath(os.path.join(folder, name))
        _check_row(index, folder, line, row, path)
        above, _, last = path.rpartition(os.sep)
        file = os.path.realpath(path) if os.path.islink(path) else f"{real_folder(above)}{os.sep}{last}"
        if file in line_of_file:
            raise ValueError(f"{_INDEX}: {index}, line {line}: {name} is in line {line_of_file[file]} too: delete one")
        line_of_file[file] = line
        if client:
            line_of_client.setdefault(client, line)
        elif "client" in row and split == "train":
            raise ValueError(
                f"{_INDEX}: {index}, line {line}: {name} is a training image without a client: name one, or drop the column"
            )
        parts[split].append(ListedImage(path, row["label"], client, f"{_INDEX}: {index}, line {line}: {name}", _stamp(path)))
    if not parts["train"]:
        raise ValueError(f"{_INDEX} is {index}, which names no training image: add lines")
    training = {image.client for image in parts["train"]}
    for client, line in line_of_client.items():
        if client not in training:
            raise ValueError(
                f"{_INDEX}: {index}, line {line}: client {client} has no training image: give it one, or leave "
                "the client of its test images empty"
            )
    return parts


def _check_row(index: Path, root: str, line: int, row: dict[str, str], path: str) -> None:
    """Check a line; ``path``: the normalised absolute path of its image, as ``root``."""
    if not row["label"]:
        raise ValueError(f"{_INDEX}: {index}, line {line}: {row['path']} has no label: give it one")
    if row.get("split", "train") not in get_args(Part):
        known = " or ".join(get_args(Part))
        raise ValueError(f"{_INDEX}: {index}, line {line}: split is {row['split']!r}, must be {known}: correct it")
    if not path.startswith(root.rstrip(os.sep) + os.sep) and path != root:
        raise ValueError(
            f"{_INDEX}: {index}, line {line}: {row['path']} is outside data.root {root}: put the image there, or set "
            "data.root to a folder that holds all"
        )
    if not row["path"] or not os.path.isfile(path):
        raise ValueError(
            f"{_INDEX}: {index}, line {line}: {row['path'] or 'the path'} is not a file under data.root {root}: correct "
            "the path"
        )
