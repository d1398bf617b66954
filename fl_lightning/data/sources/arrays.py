"""Samples in memory, or in a NumPy archive."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import ArrayLike
from torch import Tensor

from fl_lightning.data.samples import Dataset, Samples
from fl_lightning.data.sources.source import Source

# What an archive may call its arrays: as Arrays does, or as Keras does.
_NAMES = {"inputs": "x_train", "targets": "y_train", "test_inputs": "x_test", "test_targets": "y_test"}


class Arrays(Source):
    """Tensors, or NumPy arrays, in memory.

    Args:
        inputs: (n, ...) uint8 images (n, channels, height, width) or floats of any shape.
        targets: (n,) class indices.
        test_inputs, test_targets: the same for the test set; none means no test set.
        classes: names in label order; by default "0", "1", ... up to the largest label.
        owners: (n,) natural client of every training sample, whole numbers from 0 without a gap.

    Raises:
        ValueError: if one of ``test_inputs`` and ``test_targets`` is missing, or targets are no whole numbers.
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        test_inputs: Tensor | None = None,
        test_targets: Tensor | None = None,
        classes: Sequence[str] | None = None,
        owners: Tensor | None = None,
    ) -> None:
        inputs, targets = torch.as_tensor(inputs), _whole_numbers("targets", targets)
        if (test_inputs is None) != (test_targets is None):
            given = "test_inputs" if test_targets is None else "test_targets"
            raise ValueError(f"data.source Arrays has {given} alone: give test_inputs and test_targets, or neither")
        if test_inputs is None or test_targets is None:
            test_inputs, test_targets = inputs[:0], targets[:0]
        test_inputs, test_targets = torch.as_tensor(test_inputs), _whole_numbers("test_targets", test_targets)
        largest = max((int(part.max()) for part in (targets, test_targets) if len(part) > 0), default=-1)
        names = tuple(classes) if classes is not None else tuple(str(label) for label in range(largest + 1))
        held_by = None if owners is None else _whole_numbers("owners", owners)
        self._dataset = Dataset(Samples(inputs, targets), Samples(test_inputs, test_targets), names, held_by)

    def load(self, root: Path) -> Dataset:
        return self._dataset


class Npz(Source):
    """A NumPy archive with the arrays of :class:`Arrays` by name: ``inputs``, ``targets`` and, if there are, the others.

    Keras' names ``x_train``, ``y_train``, ``x_test`` and ``y_test`` do as well. uint8 images may lack the dimension of their
    channels, or have it last.

    Args:
        path: the file.

    Raises:
        FileNotFoundError: if it does not exist.
        ValueError: if it is no such archive.
    """

    def __init__(self, path: str) -> None:
        if not Path(path).is_file():
            raise FileNotFoundError(f"data.source is {path}, which does not exist: give a .npz file")
        self.path = path

    def load(self, root: Path) -> Dataset:
        try:
            archive = np.load(self.path)
            if not isinstance(archive, NpzFile):
                raise ValueError("it is a single array")
            with archive:
                arrays = {name: archive[name] for name in archive.files}
        except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise ValueError(
                f"data.source is {self.path}, which is no archive of plain arrays ({reason}): save it anew"
            ) from error
        for own, other in _NAMES.items():
            if own in arrays and other in arrays:
                raise ValueError(f"data.source is {self.path}, which has both {own} and {other}: leave one out")
            if other in arrays:
                arrays[own] = arrays.pop(other)
        known = [*_NAMES, "classes", "owners"]
        unknown = sorted(set(arrays) - set(known))
        missing = [name for name in ("inputs", "targets") if name not in arrays]
        if unknown or missing:
            what = f"has no array {missing[0]}" if missing else f"has an array {unknown[0]}"
            raise ValueError(f"data.source is {self.path}, which {what}: an archive may hold {', '.join(known)}")
        for name in ("inputs", "test_inputs"):
            if name in arrays:
                arrays[name] = _channels_first(arrays[name])
        for name in ("targets", "test_targets"):
            if name in arrays and arrays[name].ndim == 2 and arrays[name].shape[1] == 1:  # as Keras saves CIFAR
                arrays[name] = arrays[name][:, 0]
        classes = arrays.pop("classes", None)
        names = None if classes is None else [str(name) for name in classes.tolist()]
        try:
            return Arrays(**arrays, classes=names).load(root)
        except ValueError as error:
            raise ValueError(f"{error} (in {self.path})") from error


def _channels_first(inputs: np.ndarray) -> np.ndarray:
    if inputs.dtype != np.uint8:
        return inputs
    if inputs.ndim == 3:
        return inputs[:, None]
    if inputs.ndim == 4 and inputs.shape[3] <= 4 < inputs.shape[1]:
        return np.ascontiguousarray(inputs.transpose(0, 3, 1, 2))
    return inputs


def _whole_numbers(name: str, values: ArrayLike | Tensor) -> Tensor:
    numbers = values if isinstance(values, Tensor) else np.asarray(values)
    is_whole = not numbers.is_floating_point() if isinstance(numbers, Tensor) else numbers.dtype.kind in "iub"
    if not is_whole and numbers.shape[0] > 0:
        raise ValueError(f"data.source has {name} of type {numbers.dtype}, must be whole numbers from 0: number the classes")
    return torch.as_tensor(numbers).long()
