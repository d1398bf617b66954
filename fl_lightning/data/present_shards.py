"""The clients' present shards: all of their samples or, if they learn tasks, those of their present task.

Also the sizes of batches from these.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_lightning.data.shards import ClientShards


class PresentShards:
    """One of the shards of each client.

    Args:
        shards: shards of N clients and T tasks: row ``client * T + position`` is a client's task at that position.
        num_tasks: T; 1 if the same samples are used in all rounds.
    """

    train: Tensor
    """Indices of all training samples, on the device on which they are used."""
    label_counts: Tensor
    """(N, C), of each client's training and validation samples."""
    train_label_counts: Tensor
    """(N, C), of each client's training samples."""

    def __init__(self, shards: ClientShards, num_tasks: int) -> None:
        self.shards, self.num_tasks = shards, num_tasks
        self._train_start = shards.train_start.numpy()
        self._rows: Sequence[int] = range(0, len(shards.label_counts), num_tasks)

    def to(self, device: torch.device, streamed: bool) -> None:
        """Keep indices and counts on a device; indices of streamed samples stay on the host."""
        self._device = device
        self.train = self.shards.train if streamed else self.shards.train.to(device)
        self._count_labels()

    def go_to(self, positions: Sequence[int]) -> None:
        """Use the samples of each client's task at that position from now on; T: of its last task."""
        last = self.num_tasks - 1
        self._rows = [client * self.num_tasks + min(position, last) for client, position in enumerate(positions)]
        self._count_labels()

    def at_each_position(self) -> Iterator[int]:
        """Every position in turn, with all clients at it; at the end they return to their present ones."""
        present = self._rows
        try:
            for position in range(self.num_tasks):
                self.go_to([position] * len(present))
                yield position
        finally:
            self._rows = present
            self._count_labels()

    def _count_labels(self) -> None:
        counts = self.shards.label_counts, self.shards.train_label_counts
        if self.num_tasks > 1:
            counts = (each[[*self._rows]] for each in counts)
        self.label_counts, self.train_label_counts = (each.to(self._device) for each in counts)

    def train_start(self, client: int) -> int:
        """Start of a client's samples in ``train``."""
        return int(self._train_start[self._rows[client]])

    def num_train(self, client: int) -> int:
        """Training samples of a client, n_k."""
        row = self._rows[client]
        return int(self._train_start[row + 1] - self._train_start[row])

    def train_indices(self, client: int) -> Tensor:
        """Indices of a client's training samples."""
        return self.shards.train_indices(self._rows[client])

    def validation_indices(self, client: int) -> Tensor:
        """Indices of a client's validation samples."""
        return self.shards.validation_indices(self._rows[client])

    @property
    def newest_position(self) -> int:
        """The latest position of a client."""
        return max(row % self.num_tasks for row in self._rows)

    def validation_so_far(self, client: int) -> Tensor:
        """Indices of a client's validation samples of its tasks up to the present one, each once, ascending."""
        last = self._rows[client]
        rows = range(last - last % self.num_tasks, last + 1)
        return torch.cat([self.shards.validation_indices(row) for row in rows]).unique()


@dataclass(frozen=True)
class BatchSizes:
    """Sizes of clients' batches."""

    shards: PresentShards
    local_step: int | None  # the last of an epoch can have fewer; None: a client's shard is one batch
    evaluation: int  # of an evaluation step

    def steps_per_epoch(self, client: int) -> int:
        """Batches of one pass over a client's training samples."""
        size = self.shards.num_train(client)
        return -(-size // (self.local_step or size or 1))  # a client that has not joined has none

    def sampling_rate(self, client: int) -> float:
        """Share of a client's training samples in a batch, at most 1: the probability of each in a Poisson batch."""
        size = self.shards.num_train(client)
        return min((self.local_step or size) / size, 1.0)

    def of_visit(self, client: int, steps: int) -> set[int]:
        """Samples of the batches in a client's visit of this many steps, which are of one or two sizes."""
        size = self.shards.num_train(client)
        batch, reaches_last = min(self.local_step or size, size), steps >= self.steps_per_epoch(client)
        return {batch, size % batch or batch} if reaches_last else {batch}
