"""Packed messages in Flower's records."""

import torch
from flwr.app import Array, RecordDict

from fl_lightning.protocol import Packed
from fl_lightning.sites.link import records_of, values_of

# Flower sends each array on its own, in several calls, and all numbers of a message together.
_AS_NUMBERS = {torch.bool: bool, torch.int64: int, torch.float64: float}
_TYPES = {kind: dtype for dtype, kind in _AS_NUMBERS.items()}


def to_records(packed: Packed, **texts: str) -> RecordDict:
    """The records of a packed message, in separate memory, and of texts that go with it.

    Tensors without dimensions of type bool, int64 or float64 are numbers there.

    Raises:
        TypeError: for a tensor of a type that NumPy lacks, such as bfloat16.
    """
    is_number = {path: tensor.ndim == 0 and tensor.dtype in _AS_NUMBERS for path, tensor in packed.items()}
    numbers = {path: tensor.item() for path, tensor in packed.items() if is_number[path]}
    arrays = {path: Array(tensor.cpu().numpy()) for path, tensor in packed.items() if not is_number[path]}
    return records_of(numbers | texts, arrays)


def from_records(records: RecordDict) -> Packed:
    """The inverse of :func:`to_records`, without the texts; nothing in the arrays is run as code."""
    numbers = {path: value for path, value in values_of(records).items() if not isinstance(value, str)}
    arrays = {path: torch.from_numpy(array.numpy()) for path, array in records.array_records["arrays"].items()}
    return {**{path: torch.tensor(value, dtype=_TYPES[type(value)]) for path, value in numbers.items()}, **arrays}
