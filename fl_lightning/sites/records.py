"""Plain values in Flower's records: numbers in a ConfigRecord, arrays in an ArrayRecord. Needs no torch."""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fl_lightning.sites.link import Parcel

_NUMBERS, _ARRAYS = "numbers", "arrays"


def to_records(numbers: Mapping[str, Any], arrays: Mapping[str, bytes]) -> RecordDict:
    """The records of a message in plain values."""
    named = {name: Array(np.load(io.BytesIO(file), allow_pickle=False)) for name, file in arrays.items()}
    return RecordDict({_NUMBERS: ConfigRecord(dict(numbers)), _ARRAYS: ArrayRecord(named)})


def from_records(records: RecordDict) -> Parcel:
    """The message in some records."""
    arrays = {name: array.data for name, array in records.array_records[_ARRAYS].items()}
    return Parcel(dict(records.config_records[_NUMBERS]), arrays)
