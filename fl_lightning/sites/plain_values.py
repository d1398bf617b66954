"""Packed messages as plain values: numbers by path, and NumPy's file of each other tensor."""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fl_lightning.protocol import Packed
from fl_lightning.sites.link import Parcel

# Flower sends each array on its own, in several calls, and all numbers of a message together.
_AS_NUMBERS = {torch.bool: bool, torch.int64: int, torch.float64: float}
_TYPES = {kind: dtype for dtype, kind in _AS_NUMBERS.items()}


def to_plain(packed: Packed) -> Parcel:
    """A packed message in plain values, in separate memory.

    Numbers are tensors without dimensions of type bool, int64 or float64.

    Raises:
        TypeError: for a tensor of a type that NumPy lacks, such as bfloat16.
    """
    is_number = {path: tensor.ndim == 0 and tensor.dtype in _AS_NUMBERS for path, tensor in packed.items()}
    numbers = {path: tensor.item() for path, tensor in packed.items() if is_number[path]}
    return Parcel(numbers, {path: _file(tensor.cpu().numpy()) for path, tensor in packed.items() if not is_number[path]})


def from_plain(numbers: Mapping[str, Any], arrays: Mapping[str, bytes]) -> Packed:
    """The inverse of :func:`to_plain`."""
    tensors = {path: torch.from_numpy(np.load(io.BytesIO(file), allow_pickle=False)) for path, file in arrays.items()}
    return {**{path: torch.tensor(value, dtype=_TYPES[type(value)]) for path, value in numbers.items()}, **tensors}


def _file(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()
