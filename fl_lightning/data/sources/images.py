"""Images to samples: decoded on all cores, in one mode and one size."""

import math
import operator
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fl_lightning.checks import check_memory, check_range
from fl_lightning.data.mapped_files import create_rows
from fl_lightning.data.samples import Samples


def decode(
    read: Callable[[int], tuple[Image.Image, int]],
    count: int,
    name: Callable[[int], str],
    size: int | None,
    mode: str,
    file: Path,
) -> Samples:
    """Images and their labels as samples (count, channels, height, width), uint8, in a file: memory holds one a core.

    Args:
        read: returns the i-th image and its label; called from several threads.
        count: number of images, at least 1.
        name: returns the name of the i-th image, with which messages begin.
        size: height and width of all images: the shorter side is scaled to it, and the middle is kept. None: unchanged.
        mode: ``L`` for grey, ``RGB`` for colour.
        file: file of the images, which is written anew.

    Raises:
        OSError: naming the file, if it cannot be written or the disk has no space for it.
        ValueError: if images differ in size and ``size`` is None, one takes more than this machine's memory, a pixel has 32
            bits, or a label is not a whole number.
    """
    width, height = (size, size) if size is not None else read(0)[0].size
    shape = (1 if mode == "L" else 3, height, width)
    what = f"{name(0)} and the other {count - 1:,} images of {height}x{width} pixels"
    check_memory(math.prod(shape), f"each of {what} would", "give the source as a class with a smaller data.source.size")
    stored = create_rows(file, (count, *shape), torch.uint8)
    images, labels = stored.numpy(), np.empty(count, dtype=np.int64)

    def read_into(i: int) -> None:
        image, label = read(i)
        pixels = _pixels(image, name(i), size, mode)
        try:
            labels[i] = operator.index(label)
        except TypeError as error:
            shown = " ".join(repr(label).split())[:40]
            raise ValueError(
                f"{name(i)} has the label {shown}, must be the number of its class: choose a set of classes"
            ) from error
        if pixels.shape != shape:
            sizes = ["x".join(map(str, given[1:])) for given in (pixels.shape, shape)]
            raise ValueError(
                f"{name(i)} has {sizes[0]} pixels, the first image {sizes[1]}: give the source as a class with "
                "size, in Python size=64, such as --data.source ImageFolder --data.source.size 64"
            )
        images[i] = pixels

    with ThreadPoolExecutor() as pool:
        for _ in pool.map(read_into, range(count)):
            pass
    return Samples(stored, torch.from_numpy(labels))


def check_size(size: int | None) -> int | None:
    """The size unchanged; raises a ValueError unless it is None or at least 1."""
    if size is not None:
        check_range("data.source.size", size, at_least=1, hint="height and width in pixels")
    return size


def open_image(path: str, name: str) -> Image.Image:
    """An image, read completely.

    Raises:
        ValueError: with ``name`` in it, if it cannot be read.
    """
    try:
        with Image.open(path) as image:
            image.load()
            return image
    except Exception as error:  # Pillow's decoders can raise anything
        raise ValueError(f"{name} cannot be read as an image ({error}): replace or delete it") from error


def mode_of(image: Image.Image, name: str) -> str:
    """The mode for a set with this first image.

    Raises:
        ValueError: with ``name`` in it, if it is not an image.
    """
    _check_image(image, name)
    return "L" if image.mode in ("1", "L", "LA") or image.mode.startswith("I;16") else "RGB"


def _pixels(image: Image.Image, name: str, size: int | None, mode: str) -> NDArray[np.uint8]:
    """An image as (channels, height, width)."""
    _check_image(image, name)
    if image.mode in ("I", "F"):
        raise ValueError(f"{name} has pixels of 32 bits, whose range is unknown: save it with 8 or 16")
    if image.mode.startswith("I;16"):  # Pillow would turn all values above 255 into white
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    image = image.convert(mode)
    if size is not None and image.size != (size, size):
        image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)


def _check_image(image: object, name: str) -> None:
    if not isinstance(image, Image.Image):
        raise ValueError(f"{name} is not an image but of type {type(image).__name__}: choose a set of images")
