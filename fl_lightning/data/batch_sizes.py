"""How many samples the steps of a visit see."""

from dataclasses import dataclass

from fl_lightning.data.present_shards import PresentShards


@dataclass(frozen=True)
class BatchSizes:
    """Sizes of clients' batches.

    Args:
        shards: of the clients.
        local_step: samples of a local step, of which the last of an epoch may have fewer; None: a client's shard is one batch.
        evaluation: samples of an evaluation step.
    """

    shards: PresentShards
    local_step: int | None
    evaluation: int

    def steps_per_epoch(self, client: int) -> int:
        """Batches of one pass over a client's training samples."""
        size = self.shards.num_train(client)
        return -(-size // (self.local_step or size))

    def sampling_rate(self, client: int) -> float:
        """Share of a client's training samples in a batch, at most 1: the probability of each in a Poisson batch."""
        size = self.shards.num_train(client)
        return min((self.local_step or size) / size, 1.0)

    def smallest(self, client: int, steps: int) -> int:
        """Samples of the smallest batch that a client's visit of so many steps has."""
        size = self.shards.num_train(client)
        batch, reaches_last = min(self.local_step or size, size), steps >= self.steps_per_epoch(client)
        return size % batch or batch if reaches_last else batch
