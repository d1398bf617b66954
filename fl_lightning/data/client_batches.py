"""Serves clients their training samples: batches of local steps, whole passes, and each sample once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, repeat, tee

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fl_lightning.data.batch_plan import Step, Visits, joined
from fl_lightning.data.prepared_samples import PreparedSamples
from fl_lightning.data.present_shards import BatchSizes, PresentShards
from fl_lightning.protocol import Batch, NetInputs, PlannedStep

# Approximate limits of input values that are read together: 64 MiB on a GPU, and on a processor what its cache holds.
_READ_TOGETHER = 1 << 24
_READ_TOGETHER_ON_CPU = 1 << 18


@dataclass(frozen=True)
class ShardBatches:
    """Batches from the clients' present shards, on the device that trains."""

    samples: PreparedSamples
    shards: PresentShards
    sizes: BatchSizes
    seed: int  # of orders, Poisson batches and augmentation
    sample_indices: bool = False  # whether batches contain the indices of their samples
    poisson: bool = False  # whether every sample is in a batch by an independent draw

    def expected_size(self, client: int) -> float | None:
        """Samples of a client's Poisson batch on average; None if batches have known sizes."""
        return self.sizes.sampling_rate(client) * self.shards.num_train(client) if self.poisson else None

    def batches(self, client: int, round: int, steps: int, full: bool = False) -> Iterator[Batch]:
        """A client's next ``steps`` batches: epoch after epoch in random order, the short batch at an epoch's end kept.

        Args:
            full: pad short batches with samples that do not count, so that all have one shape.
        """
        return map(_first, self.stacked_batches([client], round, [steps], full))

    def stacked_batches(self, clients: Sequence[int], round: int, steps: Sequence[int], full: bool = False) -> Iterator[Batch]:
        """The batches of several clients side by side, the same as without the others.

        Args:
            clients: their indices.
            steps: steps of each, in descending order.
            full: pad short batches to the size of a batch; otherwise to the longest of the step.

        Yields:
            Inputs (M, B, ...), targets (M, B) and a mask of those that count, for the M clients with a step left.
        """
        visits = self._local_steps(clients, round, steps)
        return self._read(visits, self._plan(visits, full))

    def planned(self, clients: Sequence[int], round: int, steps: Sequence[int], full: bool = False) -> list[list[PlannedStep]]:
        """The steps of :meth:`batches` for several clients, before samples are read; its arguments.

        If all batches have one shape, the orders of all clients are drawn side by side.
        """
        planned: list[list[PlannedStep]] = [[] for _ in clients]
        by_steps = sorted(range(len(clients)), key=lambda row: -steps[row])
        alike = full and self.sizes.local_step is not None and not self.poisson
        for rows in [by_steps] if alike else [[row] for row in by_steps]:
            visits = self._local_steps([clients[row] for row in rows], round, [steps[row] for row in rows])
            for step in self._planned_together(visits, full):
                for row, of_client in zip(rows, step, strict=False):  # those with the most steps come first
                    planned[row].append(of_client)
        return planned

    def _planned_together(self, visits: Visits, full: bool) -> Iterator[list[PlannedStep]]:
        """Step after step, for the clients with a step left."""
        device = self.samples.preparation.device
        keys = visits.keys.to(device) if self.samples.preparation.augment else None
        starts = visits.first_samples[:, None] if self.sample_indices else None
        plan, ahead = tee(self._plan(visits, full))
        streamed = self.samples.train.streamed
        stored = self.samples.train.read(self.shards.train[step.indices] for step in ahead) if streamed else repeat(None)
        for step, read in zip(plan, stored, strict=False):
            count = len(step.indices)
            samples = self.shards.train[step.indices].to(device)
            inputs = None if read is None else _chunks(read[0], count, dim=0)
            positions = (step.indices - starts[:count]).to(device) if starts is not None else None
            real, counters = (None if part is None else part.to(device) for part in (step.real, step.draw_counters))
            columns = (samples, counters, None if keys is None else keys[:count], real, positions)
            rows = zip(*(repeat(None) if column is None else column.split(1) for column in columns), strict=False)
            yield [PlannedStep(*row, inputs=None if inputs is None else inputs[number]) for number, row in enumerate(rows)]

    def read(self, step: PlannedStep) -> Batch:
        """The batch of a planned step: nothing in it depends on the host."""
        inputs, targets = step.inputs, self.samples.train.targets[step.samples]
        if inputs is None:
            inputs = self.samples.train.rows(step.samples)
        prepared = self._prepared(inputs, targets, step.key, step.counters)
        return _first(Batch(prepared, targets, step.real, step.positions))

    def epoch(self, client: int, round: int, purpose: str) -> Iterator[Batch]:
        """One pass over a client's training samples in an order drawn for the purpose, all batches of one shape."""
        visits = self._visits([client], round, [self.sizes.steps_per_epoch(client)], purpose, f"augmentation, {purpose}")
        return map(_first, self._read(visits, visits.plan(full=True)))

    def client_samples(self, client: int) -> Iterator[Batch]:
        """A client's training samples, each once and without randomness, in batches of evaluation."""
        return self.samples.batches("train", self.shards.train_indices(client).split(self.sizes.evaluation))

    def _local_steps(self, clients: Sequence[int], round: int, steps: Sequence[int]) -> Visits:
        return self._visits(clients, round, steps, "Poisson batches" if self.poisson else "batch order", "augmentation")

    def _plan(self, visits: Visits, full: bool) -> Iterator[Step]:
        return visits.poisson_plan() if self.poisson else visits.plan(full)

    def _visits(self, clients: Sequence[int], round: int, steps: Sequence[int], order: str, changes: str) -> Visits:
        """The samples of some clients' steps; ``steps`` of each, in descending order."""
        starts = [self.shards.train_start(client) for client in clients]
        sizes = [self.shards.num_train(client) for client in clients]
        drawn = changes if self.samples.preparation.augment else None
        device = self.shards.train.device
        return Visits(self.seed, round, clients, starts, sizes, steps, self.sizes.local_step, device, order, drawn)

    def _read(self, visits: Visits, planned: Iterator[Step]) -> Iterator[Batch]:
        """The batches of planned steps, augmented and normalised."""
        indices, preparation = self.shards.train, self.samples.preparation
        start = visits.first_samples[:, None] if self.sample_indices else None
        keys = visits.keys.to(preparation.device) if preparation.augment else None
        groups, ahead = tee((len(steps), joined(steps)) for steps in self._read_together(planned))
        stored = self.samples.train.read(indices[step.indices] for _, step in ahead)
        for (count, step), (inputs, targets) in zip(groups, stored, strict=True):
            key = None if keys is None else keys[: len(targets)]
            inputs = self._prepared(inputs, targets, key, step.draw_counters.to(preparation.device))
            others = (step.real, step.indices - start[: len(targets)] if start is not None else None)
            others = (None if other is None else other.to(preparation.device) for other in others)
            yield from _apart(Batch(inputs, targets, *others), count)

    def _prepared(self, inputs: NetInputs, targets: Tensor, keys: Tensor | None, counters: Tensor) -> NetInputs:
        """Stored inputs (M * B, ...) of M clients as a net takes them, (M, B, ...), augmented if there are keys, (M,)."""
        preparation = self.samples.preparation
        if keys is not None:
            inputs = preparation.augmented(inputs, keys, counters)
        return tree_map(lambda part: part.reshape(*targets.shape[:2], *part.shape[1:]), preparation.normalise(inputs))

    def _read_together(self, planned: Iterator[Step]) -> Iterator[list[Step]]:
        """Groups of a client's steps of one shape, single steps of several clients.

        On a GPU every operation costs a launch. On a processor the code of each comes back into its cache after a local step.
        """
        limit = _READ_TOGETHER_ON_CPU if self.samples.preparation.device.type == "cpu" else _READ_TOGETHER
        for (clients, samples), alike in groupby(planned, key=lambda step: step.indices.shape):
            values = samples * self.samples.preparation.sample_values
            most = max(limit // max(values, 1), 1) if clients == 1 else 1
            while steps := list(islice(alike, most)):
                yield steps


def _apart(batch: Batch, count: int) -> Iterator[Batch]:
    """The batches of this many steps that were read together."""
    if count == 1:
        return iter([batch])
    return map(Batch._make, zip(*([None] * count if part is None else _chunks(part, count, 1) for part in batch), strict=True))


def _chunks(inputs: NetInputs, count: int, dim: int) -> list[NetInputs]:
    """Equal parts along a dimension."""
    leaves, structure = tree_flatten(inputs)
    return [tree_unflatten(parts, structure) for parts in zip(*(leaf.chunk(count, dim) for leaf in leaves), strict=True)]


def _first(stacked: Batch) -> Batch:
    real, indices = (None if part is None else part[0] for part in (stacked.real, stacked.sample_indices))
    return Batch(tree_map(lambda part: part[0], stacked.inputs), stacked.targets[0], real, indices)
