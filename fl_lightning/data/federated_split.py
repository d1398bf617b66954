"""The division of a source's training samples among the server and the clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning.checks import check_range, in_code_of
from fl_lightning.data.partitions import Fixed, Partition
from fl_lightning.data.samples import Dataset
from fl_lightning.data.shards import ClientShards, split_clients, values_at
from fl_lightning.functional.partition.parts import Parts
from fl_lightning.functional.random_streams import numpy_stream, stream_seed


@dataclass(frozen=True)
class FederatedSplit:
    """Draws the server's samples and partitions the others among clients; a function of only the data and the seed."""

    partition: Partition
    num_clients: int
    public_size: int  # number of the server's samples
    seed: int

    def private_and_public(self, dataset: Dataset) -> tuple[Tensor, Tensor]:
        """Indices of the training samples for the clients, ascending, and of those for the server.

        Raises:
            ValueError: if none is left for the clients, or clients of :class:`Fixed` leave too few for the server.
        """
        count = len(dataset.train)
        check_range("data.public_size", self.public_size, below=count, hint="the clients need samples too")
        if self.public_size == 0:
            return torch.arange(count), torch.empty(0, dtype=torch.int64)
        order = torch.from_numpy(numpy_stream(self.seed, -1, -1, "public samples").permutation(count))
        if isinstance(self.partition, Fixed):
            order = order[~torch.isin(order, self.parts(dataset, order).samples)]
            hint = "data.partition.clients names all other samples"
            check_range("data.public_size", self.public_size, at_most=len(order), hint=hint)
        public = order[: self.public_size]
        return torch.ones(count, dtype=torch.bool).index_fill_(0, public, False).nonzero().flatten(), public

    def parts(self, dataset: Dataset, private: Tensor) -> Parts:
        """Each client's indices among ``private``, those of the training samples that are for the clients.

        :class:`Fixed` names the samples of the whole dataset.
        """
        if isinstance(self.partition, Fixed):
            private = torch.arange(len(dataset.train))
        labels = dataset.objective.strata(dataset.train.targets[private])
        if labels is None and self.partition.deals_classes:
            raise ValueError(
                f"data.partition is {self.partition!r}, which deals classes, but data.source has {dataset.objective!r}, whose "
                "samples have none: use IID or Natural, or give it groups"
            )
        labels = torch.zeros_like(private) if labels is None else labels
        return values_at(private, self.deal(labels, None if dataset.owners is None else dataset.owners[private]))

    def deal(self, labels: Tensor, owners: Tensor | None, key: int = -1) -> Parts:
        """Each client's positions in some labels, (n,).

        Args:
            owners: the natural client of every sample, (n,), if it is known.
            key: key of the draws: -1, or the task of the samples.

        Raises:
            ValueError: if the partition gives anything other than samples for each client, none of them twice.
        """
        name = f"data.partition {type(self.partition).__name__}"
        with in_code_of("data.partition", self.partition):
            given = self.partition.partition(labels, owners, self.num_clients, stream_seed(self.seed, key, -1, "partition"))
            if not isinstance(given, Parts | Sequence):
                raise ValueError(f"{name} gives {type(given).__name__}, must give a list with the samples of each client")
            if len(given) != self.num_clients:
                raise ValueError(f"data.num_clients is {self.num_clients}, {name} lists {len(given)} clients: make them equal")
            parts = given if isinstance(given, Parts) else Parts.of([_indices(name, part) for part in given])
        held = parts.samples
        if len(held) > 0 and (held.ndim != 1 or held.is_floating_point() or held.dtype == torch.bool):
            kind = f"{held.dtype} of shape {tuple(held.shape)}".removeprefix("torch.")
            raise ValueError(f"{name} names samples as {kind}, must be whole numbers (n,): give the index of each sample")
        held = held.long()
        outside = held[(held < 0) | (held >= len(labels))]
        if len(outside) > 0:
            raise ValueError(
                f"{name} names sample {int(outside[0])}, must be between 0 and {len(labels) - 1}: use the indices of this "
                "dataset"
            )
        times = held.bincount()
        if (times > 1).any():
            raise ValueError(f"{name} names sample {int(times.argmax())} more than once: give each sample to one client")
        return Parts(held, parts.sizes)

    def shards(self, dataset: Dataset, private: Tensor, val_fraction: float, test_fraction: float = 0.0) -> ClientShards:
        """Each client's training, validation and test samples.

        Raises:
            ValueError: if a client is left without samples.
        """
        return self.cut(dataset, self.parts(dataset, private), val_fraction, test_fraction)

    def cut(self, dataset: Dataset, parts: Parts, val_fraction: float, test_fraction: float) -> ClientShards:
        """The shards of clients that hold the samples that :meth:`parts` gives; as :meth:`shards`."""
        rng = numpy_stream(self.seed, -1, -1, "validation split")
        counted = dataset.objective.unit_counts(dataset.train.targets, len(dataset.classes))
        return split_clients(parts, counted, len(dataset.classes), val_fraction, rng, test_fraction)


def _indices(name: str, part: Any) -> Tensor:
    """A client's samples, as a partition gives them: a tensor, an array or a list of numbers."""
    try:
        indices = torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} gives a client {type(part).__name__}, must give a tensor of indices of samples") from error
    return indices if indices.numel() > 0 else indices.long()
