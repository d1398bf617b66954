"""The test samples of each client, for personal models."""

from dataclasses import dataclass
from inspect import unwrap
from typing import Literal

import torch
from torch import Tensor

from fl_lightning.data.samples import Dataset, Part
from fl_lightning.data.shards import ClientShards
from fl_lightning.functional import matched_parts
from fl_lightning.functional.partition.parts import Parts
from fl_lightning.functional.random_streams import stream_seed

Kind = Literal["held_out", "matched"]


@dataclass(frozen=True)
class ClientTestSets:
    """Test samples of N clients: client k's are ``indices[start[k]:start[k + 1]]``.

    They are ``held_out`` of the client's samples, or its own by nature; or ``matched``, samples of the global test set that
    were dealt to the client, with the class shares of its training samples.
    """

    kind: Kind
    stored: Part  # of the dataset, to which the indices refer
    indices: Tensor
    start: Tensor  # (N + 1,)

    def of_client(self, client: int) -> Tensor:
        """Indices of a client's test samples, possibly none."""
        return self.indices[self.start[client] : self.start[client + 1]]


def client_test_sets(dataset: Dataset, shards: ClientShards, held_out: bool, natural: bool, seed: int) -> ClientTestSets | None:
    """The test samples of each client; None if the dataset has none, or its samples have no class to match.

    Args:
        held_out: whether they are held out of the client's samples.
        natural: whether clients are those of the source.
    """
    if held_out:
        return ClientTestSets("held_out", "train", shards.test, shards.test_start)
    if len(dataset.test) == 0:
        return None
    if natural and dataset.owners is not None and dataset.test_owners is not None:
        ordered, order = dataset.test_owners.sort(stable=True)
        owners = dataset.owners[shards.train[shards.train_start[:-1]]]  # (N,), the natural client of each client
        first, last = (torch.searchsorted(ordered, owners, right=right) for right in (False, True))
        parts = Parts.of_ranges(order, first.numpy(), (last - first).numpy())
        return ClientTestSets("held_out", "test", parts.samples, parts.start)
    units = dataset.objective.unit_counts(dataset.test.targets, len(dataset.classes))
    if units.ndim > 1:
        return None
    parts = unwrap(matched_parts)(units, shards.train_label_counts, stream_seed(seed, -1, -1, "test sets"))
    return ClientTestSets("matched", "test", parts.samples, parts.start)
