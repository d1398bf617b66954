"""Classification sets of torchvision, by name."""

import inspect
import os
import shutil
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torchvision.datasets
from torchvision.datasets import VisionDataset

from fl_lightning.checks import ArgumentError, did_you_mean, first_line
from fl_lightning.data.cache import Files, cached, root_lock
from fl_lightning.data.samples import Dataset, numbered_classes
from fl_lightning.data.sources.images import check_size, decode, mode_of
from fl_lightning.data.sources.source import Source

_LABELS = ("targets", "labels", "_labels")  # where a set keeps them, if it keeps them apart from the images


class TorchvisionDataset(Source):
    """A classification set of torchvision by its class name, downloaded if it is not under ``root`` yet.

    Args:
        name: any class of ``torchvision.datasets`` with ``train=True/False`` or ``split="train"/"test"``.
        split: split of sets that have several, such as ``digits`` of EMNIST.
        size: height and width for sets whose images differ in size, such as GTSRB: the shorter side is scaled to it, and the
            middle is kept.

    Raises:
        ValueError: if torchvision has no such class, or the class has neither argument or needs a split.
    """

    def __init__(self, name: str, split: str | None = None, size: int | None = None) -> None:
        known = [key for key, value in vars(torchvision.datasets).items() if inspect.isclass(value) and _arguments(value)]
        if name not in known:
            listed = f"try one of {', '.join(sorted(known))}"
            cure = did_you_mean(name, ["digits", "image_folder", "leaf", *known], otherwise=listed)
            raise ArgumentError(
                "data.source",
                f"is {name!r}, neither digits, image_folder, leaf nor a classification set of torchvision: {cure}",
            )
        self._open = getattr(torchvision.datasets, name)
        self._given = _arguments(self._open)
        has_splits = {"train", "split"} <= self._given
        if has_splits and split is None:
            raise ArgumentError("data.source", f"is {name}, a set of several splits: write {name}/SPLIT, such as EMNIST/digits")
        if split is not None and not has_splits:
            raise ArgumentError("data.source", f"is {name}/{split}, but {name} has no such splits: write {name}")
        self.name, self.split, self.size = name, split, check_size(size)

    def load(self, root: Path) -> Dataset:
        with root_lock(root):
            train, test = self._parts(root)
        # The sets are fixed files: path, sizes, labels and a few samples distinguish two copies.
        few = [np.asarray(part[i][0]).tobytes() for part in (train, test) for i in (0, len(part) // 2, len(part) - 1)]
        few += [np.asarray(getattr(part, name, ())).tobytes() for part in (train, test) for name in _LABELS]
        described = f"{train}\n{test}".replace(f": {root}\n", f": {root.resolve()}\n")  # one cache, in whatever way it is given
        fingerprint = f"{described}\n{self.split}\n{self.size}\n{blake2b(b''.join(few)).hexdigest()}"
        return cached(self.name, fingerprint, lambda files: self._decode(train, test, files))

    def _parts(self, root: Path) -> list[VisionDataset]:
        found = [self._if_there(root, arguments) for arguments in self._arguments_of_parts]
        parts = [part for part in found if part is not None]
        if len(parts) == len(found):
            return parts
        self._download(root)
        return [self._open(root, **arguments, download=False) for arguments in self._arguments_of_parts]

    def _if_there(self, root: Path, arguments: dict[str, Any]) -> VisionDataset | None:
        try:
            return self._open(root, **arguments, download=False)
        except (RuntimeError, FileNotFoundError):
            return None
        except ValueError as error:  # an unknown split, or a set that has no test part
            title = self.name if self.split is None else f"{self.name}/{self.split}"
            raise ValueError(f"data.source is {title}: {' '.join(str(error).split())}") from error

    @property
    def _arguments_of_parts(self) -> list[dict[str, Any]]:
        """The arguments that open the training and the test part."""
        if self.split is not None:
            return [{"split": self.split, "train": train} for train in (True, False)]
        return [{"train": True}, {"train": False}] if "train" in self._given else [{"split": "train"}, {"split": "test"}]

    def _download(self, root: Path) -> None:
        """Download into a temporary folder, then move the files: a broken download leaves nothing."""
        if root.exists() and not root.is_dir():
            raise FileNotFoundError(f"data.root is {root}, which is a file: give a folder")
        made = [folder for folder in (root, *root.parents) if not folder.exists()]
        staging = root / ".download"
        shutil.rmtree(staging, ignore_errors=True)  # of a killed download
        try:
            staging.mkdir(parents=True)
            for arguments in self._arguments_of_parts:
                self._open(staging, **arguments, download=True)
            shutil.copytree(staging, root, dirs_exist_ok=True, copy_function=os.replace)
        except (OSError, RuntimeError, ValueError) as error:  # ValueError: torchvision can no longer download it
            shutil.rmtree(staging, ignore_errors=True)
            for folder in made:
                with suppress(OSError):
                    folder.rmdir()
            reason = first_line(error)
            raise FileNotFoundError(
                f"data.source {self.name} does not lie under data.root {root} and could not be downloaded "
                f"({reason}): set data.root to the folder that holds it, or connect to a network"
            ) from error
        shutil.rmtree(staging)

    def _decode(self, train: VisionDataset, test: VisionDataset, files: Files) -> Dataset:
        name = f"data.source {self.name}: sample {{}}".format
        mode = mode_of(train[0][0], name(0))
        parts = [
            decode(part.__getitem__, len(part), name, self.size, mode, file)
            for part, file in zip((train, test), files.values(), strict=True)
        ]
        names = getattr(train, "classes", None) or numbered_classes(*parts)
        return Dataset(*parts, classes=tuple(str(name) for name in names))


def _arguments(dataset_class: type) -> set[str]:
    """Those of ``train`` and ``split`` that select the part of a set; empty if it has no download or no parts."""
    # EMNIST passes other arguments on to MNIST.
    parameters = {name for base in dataset_class.__mro__ for name in inspect.signature(base.__init__).parameters}
    return {"train", "split"} & parameters if "download" in parameters else set()
