"""Serves clients their training samples: batches of local steps, whole passes, and each sample once."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, tee

from fl_lightning.data.batch_plan import Step, Visits, joined
from fl_lightning.data.batch_sizes import BatchSizes
from fl_lightning.data.prepared_samples import PreparedSamples
from fl_lightning.data.present_shards import PresentShards
from fl_lightning.exchange import Batch
from fl_lightning.transfers import on_device

_READ_TOGETHER = 1 << 24  # values of inputs at most and about: 64 MiB


@dataclass(frozen=True)
class ShardBatches:
    """Batches from the clients' present shards, on the device that trains.

    Args:
        samples: of all clients.
        shards: who holds which of them.
        sizes: of batches.
        seed: of orders, coins and augmentation.
        sample_indices: whether batches say which samples they have.
        poisson: whether every sample is in a batch by an independent draw.
    """

    samples: PreparedSamples
    shards: PresentShards
    sizes: BatchSizes
    seed: int
    sample_indices: bool = False
    poisson: bool = False

    def expected_size(self, client: int) -> float | None:
        """Samples of a client's Poisson batch on average; None where batches have known sizes."""
        return self.sizes.sampling_rate(client) * self.shards.num_train(client) if self.poisson else None

    def batches(self, client: int, round: int, steps: int, full: bool = False) -> Iterator[Batch]:
        """A client's next ``steps`` batches: epoch after epoch in random order, the short batch at an epoch's end kept.

        Args:
            full: fill short batches up with samples that do not count, so that all have one shape.
        """
        return map(_first, self.stacked_batches([client], round, [steps], full))

    def stacked_batches(self, clients: Sequence[int], round: int, steps: Sequence[int], full: bool = False) -> Iterator[Batch]:
        """The batches of several clients side by side, the same as each alone would get.

        Args:
            clients: who.
            steps: of each, in descending order.
            full: fill short batches up to the size of a batch; else to the longest of the step.

        Yields:
            Inputs (M, B, ...), targets (M, B) and which of them count, for the M clients that have a step left.
        """
        visits = self._visits(clients, round, steps)
        planned = visits.poisson_plan() if self.poisson else visits.plan(full, "batch order")
        return self._read(visits, planned, "augmentation")

    def epoch(self, client: int, round: int, purpose: str) -> Iterator[Batch]:
        """One pass over a client's training samples in an order that the purpose names, all batches of one shape."""
        visits = self._visits([client], round, [self.sizes.steps_per_epoch(client)])
        return map(_first, self._read(visits, visits.plan(True, purpose), f"augmentation, {purpose}"))

    def client_samples(self, client: int) -> Iterator[Batch]:
        """A client's training samples, each once and nothing about them random, in batches as of evaluation."""
        return self.samples.batches("train", self.shards.train_indices(client).split(self.sizes.evaluation))

    def _visits(self, clients: Sequence[int], round: int, steps: Sequence[int]) -> Visits:
        """Which samples the steps of some clients see; ``steps`` of each, in descending order."""
        starts = [self.shards.train_start(client) for client in clients]
        sizes = [self.shards.num_train(client) for client in clients]
        return Visits(self.seed, round, clients, starts, sizes, steps, self.sizes.local_step, self.shards.train.device)

    def _read(self, visits: Visits, planned: Iterator[Step], changes: str) -> Iterator[Batch]:
        """The batches of planned steps, augmented and normalised; ``changes`` names the draws of augmentation."""
        indices, preparation = self.shards.train, self.samples.preparation
        start = on_device(visits.starts, indices.device)[:, None] if self.sample_indices else None
        keys = visits.keys(changes).to(preparation.device) if preparation.augment else None
        groups, ahead = tee((len(steps), joined(steps)) for steps in self._read_together(planned))
        stored = self.samples.train.read(indices[step.indices] for _, step in ahead)
        for (count, step), (inputs, targets) in zip(groups, stored, strict=True):
            if keys is not None:
                inputs = preparation.augmented(inputs, keys[: len(targets)], step.draw_counters.to(preparation.device))
            inputs = preparation.normalise(inputs).reshape(*targets.shape, *preparation.input_shape)
            others = (step.real, step.indices - start[: len(targets)] if start is not None else None)
            others = (None if other is None else other.to(preparation.device) for other in others)
            yield from _apart(Batch(inputs, targets, *others), count)

    def _read_together(self, planned: Iterator[Step]) -> Iterator[list[Step]]:
        """On a GPU, where every operation costs a launch, a client's steps of one shape; elsewhere, one after another."""
        if self.samples.preparation.device.type == "cpu":
            yield from ([step] for step in planned)
            return
        for (clients, samples), alike in groupby(planned, key=lambda step: step.indices.shape):
            values = samples * math.prod(self.samples.preparation.input_shape)
            most = max(_READ_TOGETHER // max(values, 1), 1) if clients == 1 else 1
            while steps := list(islice(alike, most)):
                yield steps


def _apart(batch: Batch, count: int) -> Iterator[Batch]:
    """The batches of so many steps that were read together."""
    if count == 1:
        return iter([batch])
    parts = (None if part is None else part.chunk(count, dim=1) for part in batch)
    return map(Batch._make, zip(*([None] * count if part is None else part for part in parts), strict=True))


def _first(stacked: Batch) -> Batch:
    real, indices = (None if part is None else part[0] for part in (stacked.real, stacked.sample_indices))
    return Batch(stacked.inputs[0], stacked.targets[0], real, indices)
