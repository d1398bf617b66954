"""Samples in memory, or in a NumPy archive."""

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fl_lightning.checks import check_file
from fl_lightning.data.archives import read_archive
from fl_lightning.data.samples import Dataset, Samples, numbered_classes
from fl_lightning.data.sources.source import Source
from fl_lightning.objectives import Objective, SingleLabel
from fl_lightning.protocol import NetInputs

# Names of arrays in an archive: those of Arrays, or those of Keras.
_NAMES = {"inputs": "x_train", "targets": "y_train", "test_inputs": "x_test", "test_targets": "y_test"}
# torch stores these types but calculates with none of them.
_SIGNED = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}


class Arrays(Source):
    """Tensors, NumPy arrays or data frames in memory.

    Args:
        inputs: (n, ...) uint8 images (n, channels, height, width), floats of any shape, or whole numbers of any shape, such as
            token ids, which reach the net as they are (:class:`~fl_lightning.data.Samples`). For a net with several arguments,
            a dict of such arrays by name, as a tokenizer returns it, or a tuple of arrays.
        targets: (n,) class indices, or names of classes, which are numbered in the order of ``classes``.
        test_inputs, test_targets: the same for the test set; None: there is no test set.
        classes: names in label order; by default "0", "1", ... up to the largest label, or the names in ``targets``, sorted.
        owners: (n,) natural client of every training sample, whole numbers from 0 without a gap.
        objective: what the targets mean, of :mod:`fl_lightning.objectives`; ``classes`` are the names of
            its units.

    Raises:
        TypeError: if ``objective`` is none, such as a text or a class.
        ValueError: if one of ``test_inputs`` and ``test_targets`` is missing, inputs are not numbers, or targets are neither
            whole numbers nor names of classes; and as :class:`~fl_lightning.data.Dataset`.
    """

    def __init__(
        self,
        inputs: NetInputs,
        targets: Tensor | ArrayLike,
        test_inputs: NetInputs | None = None,
        test_targets: Tensor | ArrayLike | None = None,
        classes: Sequence[str] | None = None,
        owners: Tensor | ArrayLike | None = None,
        objective: Objective = SingleLabel(),
    ) -> None:
        if (test_inputs is None) != (test_targets is None):
            given = "test_inputs" if test_targets is None else "test_targets"
            raise ValueError(f"data.source Arrays has only {given}: give test_inputs and test_targets, or neither")
        if not isinstance(objective, Objective):
            raise TypeError(
                f"data.source has the objective {objective!r}, must be an object of fl_lightning.objectives: give one, such as "
                "MultiLabel() or Regression()"
            )
        _refuse_list_of_inputs(inputs, targets)
        if classes is None and objective.tells_classes and _are_names(targets):
            classes = sorted(label for label in set(np.asarray(targets).tolist()) if isinstance(label, str))

        def stored(name: str, given: Any) -> Tensor:
            return _labels(name, given, classes) if objective.tells_classes else objective.stored(name, _numbers(name, given))

        train = Samples(_tensors("inputs", inputs), stored("targets", targets))
        if isinstance(train.inputs, Tensor) and train.inputs.dtype == torch.uint8 and _has_channels_last(train.inputs.shape):
            height, width, channels = train.inputs.shape[1:]
            raise ValueError(
                f"data.source has images of shape {(height, width, channels)}: put channels first, {(channels, height, width)}"
            )
        if test_inputs is None or test_targets is None:
            test = train.none()
        else:
            test = Samples(_tensors("test_inputs", test_inputs), stored("test_targets", test_targets))
        if classes is None and objective.tells_classes:
            classes = numbered_classes(train, test)
            if len(classes) > 1 and not any((part.targets == 0).any() for part in (train, test)):
                said = "data.source has no sample of class 0: count classes from 0, or name them in classes"
                warnings.warn(said, stacklevel=2)
        objective, names = objective.fitted(train.targets, test.targets, classes)
        held_by = None if owners is None else _whole_numbers("owners", owners)
        self._dataset = Dataset(train, test, names, held_by, objective=objective)

    def load(self, root: Path) -> Dataset:
        return self._dataset


class Npz(Source):
    """A NumPy archive with the arrays of :class:`Arrays` by name: ``inputs``, ``targets`` and optionally the others.

    Keras' names ``x_train``, ``y_train``, ``x_test`` and ``y_test`` also work. uint8 images can lack the dimension of their
    channels, or have it last.

    Args:
        path: the file.
        objective: as of :class:`Arrays`.

    Raises:
        FileNotFoundError: if it does not exist.
        ValueError: if it is not such an archive.
    """

    def __init__(self, path: str, objective: Objective = SingleLabel()) -> None:
        check_file("data.source", path, "give a .npz file")
        self.path, self.objective = Path(path), objective

    def load(self, root: Path) -> Dataset:
        arrays = self._arrays()
        classes = arrays.pop("classes", None)
        try:
            return Arrays(**arrays, classes=_class_names(classes), objective=self.objective).load(root)
        except ValueError as error:
            raise ValueError(f"{error} (in {self.path})") from error

    def _arrays(self) -> dict[str, np.ndarray]:
        """The arrays in the archive, under the names of :class:`Arrays`, images with their channels first."""
        arrays = read_archive("data.source", self.path)
        for name, other in _NAMES.items():
            if name in arrays and other in arrays:
                raise ValueError(f"data.source is {self.path}, which has both {name} and {other}: leave one out")
            if other in arrays:
                arrays[name] = arrays.pop(other)
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
            if self.objective.tells_classes and name in arrays and arrays[name].ndim == 2 and arrays[name].shape[1] == 1:
                arrays[name] = arrays[name][:, 0]  # as Keras saves CIFAR
        return arrays


def _class_names(classes: np.ndarray | None) -> list[str] | None:
    if classes is None:
        return None
    if classes.ndim != 1 or classes.dtype.kind not in "Uiu":
        raise ValueError(
            f"data.source has classes of type {classes.dtype} and shape {classes.shape}, must be one text a class: "
            "save their names"
        )
    return [str(name) for name in classes.tolist()]


def _channels_first(inputs: np.ndarray) -> np.ndarray:
    if inputs.dtype != np.uint8:
        return inputs
    if inputs.ndim == 3:
        return inputs[:, None]
    if _has_channels_last(inputs.shape):
        return np.ascontiguousarray(inputs.transpose(0, 3, 1, 2))
    return inputs


def _has_channels_last(shape: Sequence[int]) -> bool:
    """Whether images (n, ...) are (n, height, width, channels), by the sizes that are usual."""
    return len(shape) == 4 and shape[3] <= 4 < min(shape[1:3])


def _tensors(name: str, values: Any) -> NetInputs:
    """A tensor, or a dict or tuple of tensors, of what NumPy accepts as arrays."""
    if isinstance(values, Mapping):
        return {str(key): _numbers(f"{name} {key!r}", part) for key, part in values.items()}
    if isinstance(values, tuple) and all(isinstance(part, Tensor | np.ndarray) and part.ndim > 0 for part in values):
        return tuple(_numbers(f"{name} {position}", part) for position, part in enumerate(values))
    return _numbers(name, values)


def _refuse_list_of_inputs(inputs: Any, targets: Any) -> None:
    """Refuse a list with one array for each argument of a net: a list is an array of samples."""
    if not isinstance(inputs, list) or not all(isinstance(part, Tensor | np.ndarray) for part in inputs):
        return
    count = len(targets) if np.ndim(targets) > 0 else 0
    if len(inputs) != count and all(part.ndim > 0 and len(part) == count for part in inputs):
        raise ValueError(
            f"data.source has inputs in a list of {len(inputs)} arrays with {count} rows each: give several inputs of a net as "
            "a tuple"
        )


def _are_names(targets: Any) -> bool:
    """Whether targets are names of classes; some may be missing, None or NaN in a data frame."""
    if isinstance(targets, Tensor) or getattr(targets, "ndim", 1) == 0:
        return False
    given = (target for target in targets if target is not None and not (isinstance(target, float) and math.isnan(target)))
    return isinstance(next(given, None), str)


def _labels(name: str, targets: Any, classes: Sequence[str] | None) -> Tensor:
    """(n,) class indices of targets, which may be names of classes."""
    if not _are_names(targets):
        return _whole_numbers(name, targets)
    number = {str(known): position for position, known in enumerate(classes or ())}
    names = np.asarray(targets).tolist()
    for row, label in enumerate(names):
        if not isinstance(label, str):
            raise ValueError(
                f"data.source has {name} {label!r} for sample {row}, must be the name of a class: name it, or leave it out"
            )
        if label not in number:
            raise ValueError(
                f"data.source has {name} {label!r} for sample {row}, which is not a class: the classes are {', '.join(number)}"
            )
    return torch.tensor([number[label] for label in names], dtype=torch.int64)


def _numbers(name: str, values: ArrayLike | Tensor) -> Tensor:
    """A tensor of values that NumPy accepts as an array, or of a data frame."""
    tensor = values.detach().cpu() if isinstance(values, Tensor) else _from_numpy(name, values)
    if tensor.ndim == 0:
        raise ValueError(f"data.source has {name} of shape (), must be (samples, ...): give each sample a row")
    signed = tensor.to(_SIGNED.get(tensor.dtype, tensor.dtype))
    if tensor.dtype == torch.uint64 and signed.numel() > 0 and signed.min() < 0:
        raise ValueError(f"data.source has {name} of {int(signed.min()) + (1 << 64)}, must be below 2^63: number them from 0")
    return signed


def _from_numpy(name: str, values: ArrayLike) -> Tensor:
    """A tensor that shares memory with an array if torch can."""
    array = _array(name, values)
    if "inputs" in name and isinstance(next(iter(array.flat), None), str):
        raise ValueError(
            f"data.source has {name} of texts, must be numbers: give the output of the net's tokenizer, "
            'tokenizer(list(texts), padding=True, return_tensors="np")'
        )
    if array.dtype.kind not in "biuf":
        columns = [str(column) for column, kind in getattr(values, "dtypes", {}).items() if kind.kind not in "iuf"]
        named = f" in the columns {', '.join(columns)}" if columns else ""
        raise ValueError(
            f"data.source has {name} of type {array.dtype}{named}, must be numbers: give floats, uint8 images or whole numbers"
        )
    plain = np.float64 if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")  # torch has no others
    with warnings.catch_warnings():
        # A file may be mapped read-only: nothing writes to inputs.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.require(array, plain, "C"))


def _array(name: str, values: ArrayLike) -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError as error:  # lists of different lengths
        cure = "give all samples one shape" + ", texts by padding=True of the tokenizer" * ("inputs" in name)
        raise ValueError(f"data.source has {name} that are not an array ({error}): {cure}") from error


def _whole_numbers(name: str, values: ArrayLike | Tensor) -> Tensor:
    numbers = values if isinstance(values, Tensor) else _array(name, values)
    is_whole = not numbers.is_floating_point() if isinstance(numbers, Tensor) else numbers.dtype.kind in "iub"
    is_one_a_sample = math.prod(numbers.shape[1:]) == 1  # targets of other shapes are refused for their shape
    if not is_whole and (is_one_a_sample or "owners" in name) and (numbers.ndim == 0 or numbers.shape[0] > 0):
        cure = "number the classes 0 to C - 1, or give values the objective Regression of fl_lightning.objectives"
        cure = "number the clients" if "owners" in name else cure
        raise ValueError(f"data.source has {name} of type {numbers.dtype}, must be whole numbers from 0: {cure}")
    return _numbers(name, numbers if is_whole else np.zeros(numbers.shape, np.int64)).long()
