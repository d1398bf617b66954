"""The samples of clients' steps, for many clients side by side."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from fl_lightning.functional.random_streams import random_bits, stream_seed
from fl_lightning.functional.transfers import on_device

_EPOCH = 1 << 32  # draws of a stream reserved for one epoch
_DRAWN_TOGETHER = 1 << 16  # approximate limit of positions in the orders of a client's epochs


class Step(NamedTuple):
    """One step of several visits: M clients with a step left, B samples each."""

    indices: Tensor  # (M, B) into the shards' flat list of training indices
    real: Tensor | None  # (M, B), false for padding of shorter batches; None: all have B samples
    draw_counters: Tensor  # (M, B), the position of every sample in its client's visit


def joined(steps: Sequence[Step]) -> Step:
    """Steps of one shape as a single one, side by side: (M, steps * B)."""
    if len(steps) == 1:
        return steps[0]
    real = [step.real for step in steps if step.real is not None]  # of all of one shape, or of none
    return Step(
        torch.cat([step.indices for step in steps], dim=1),
        torch.cat(real, dim=1) if real else None,
        torch.cat([step.draw_counters for step in steps], dim=1),
    )


@dataclass(frozen=True)
class Visits:
    """Visits of a round whose steps are taken side by side.

    Every client goes through its shard epoch after epoch, each time in a new random order; the short batch at an epoch's end is
    kept. Orders are drawn from (seed, round, client), so other clients in the list do not matter.
    """

    seed: int
    round: int
    clients: Sequence[int]
    starts: Sequence[int]  # start of each client's samples in the shards' flat list
    sizes: Sequence[int]  # training samples of each client
    steps: Sequence[int]  # of each visit, in descending order
    batch_size: int | None  # None: the whole shard
    device: torch.device
    order: str = "batch order"  # name of the draws of orders, or of Poisson batches
    changes: str | None = None  # name of the draws of augmentation, if there is any

    @cached_property
    def _batches(self) -> list[int]:
        return [self.batch_size or size for size in self.sizes]

    @cached_property
    def _per_epoch(self) -> list[int]:
        return [-(-size // batch) for size, batch in zip(self.sizes, self._batches, strict=True)]

    @cached_property
    def _table(self) -> Tensor:
        """(5 or 6, M), all numbers for the device, in one copy."""
        names = [self.order] if self.changes is None else [self.order, self.changes]
        seeds = ([stream_seed(self.seed, self.round, client, name) for client in self.clients] for name in names)
        return on_device([self.starts, self.sizes, self._batches, self._per_epoch, *seeds], self.device, torch.int64)

    @property
    def first_samples(self) -> Tensor:
        """(M,), start of each client's samples in the shards' flat list."""
        return self._table[0]

    @property
    def keys(self) -> Tensor:
        """(M,) keys of the clients' streams for augmentation, if there is any."""
        return self._table[5]

    def plan(self, full: bool = False) -> Iterator[Step]:
        """Step after step, for the clients with a step left.

        Args:
            full: pad every batch to ``batch_size`` and mark the real samples, so that all have one shape.
        """
        if len(self.clients) == 1:
            yield from islice(self._epochs_of_one(full), self.steps[0])
            return
        batches, per_epoch = self._batches, self._per_epoch
        start, size, batch, epoch_steps, keys = self._table[:5]
        order = torch.empty(len(self.clients), 0, dtype=torch.int64, device=self.device)
        for step in range(self.steps[0]):
            active = sum(steps > step for steps in self.steps)
            beginning = [row for row in range(active) if step % per_epoch[row] == 0]
            if beginning:
                order = self._reorder(order[:active], beginning, keys, size, step // epoch_steps)
            first = (step % epoch_steps[:active] * batch[:active])[:, None]
            lengths = [min(batches[row], self.sizes[row] - step % per_epoch[row] * batches[row]) for row in range(active)]
            width = max(batches[:active]) if full else max(lengths)
            slots = torch.arange(width, device=self.device)
            real = None if min(lengths) == width and not full else first + slots < size[:active, None]
            position = (first + slots).minimum(size[:active, None] - 1)
            indices = start[:active, None] + order[:active].gather(1, position)
            yield Step(indices, real, step * batch[:active, None] + slots)

    def _epochs_of_one(self, full: bool) -> Iterator[Step]:
        """:meth:`plan` for a single client, to the end of its last epoch: several epochs by the operations of one."""
        (size,), (batch,), (per_epoch,) = self.sizes, self._batches, self._per_epoch
        start, keys = self._table[0], self._table[4]
        slots = torch.arange(per_epoch * batch, device=self.device)  # of an epoch
        used = slots if full else slots[:size]
        real = (slots < size)[None].split(batch, dim=1) if full else [None] * per_epoch
        num_epochs, together = -(-self.steps[0] // per_epoch), max(_DRAWN_TOGETHER // size, 1)
        for first in range(0, num_epochs, together):
            epochs = torch.arange(first, min(first + together, num_epochs), device=self.device)[:, None]
            order = random_bits(keys, epochs * _EPOCH + slots[:size]).argsort(dim=1, stable=True)
            indices = start + (order[:, slots.clamp_max(size - 1)] if full else order)
            draw_counters = epochs * len(slots) + used
            for of_epoch in zip(indices.split(1), draw_counters.split(1), strict=True):
                indices_of_steps, counters_of_steps = (part.split(batch, dim=1) for part in of_epoch)
                yield from map(Step, indices_of_steps, real, counters_of_steps)

    def poisson_plan(self) -> Iterator[Step]:
        """Steps of a single client, with every sample in each by an independent draw: on average ``batch_size`` samples."""
        (size,), (steps,), (start,) = self.sizes, self.steps, self.starts
        positions, keys = torch.arange(size, device=self.device), self._table[4]
        share = int(min((self.batch_size or size) / size, 1.0) * (1 << 53))  # of the draws' upper 53 bits
        for step in range(steps):
            counters = step * size + positions
            chosen = random_bits(keys, counters) >> 10 < share
            yield Step((start + positions[chosen])[None], None, counters[chosen][None])

    def _reorder(self, order: Tensor, rows: list[int], keys: Tensor, size: Tensor, epoch: Tensor) -> Tensor:
        """Give these rows of ``order``, (M, largest size), the permutation of their epoch; the others do not change."""
        chosen = slice(len(order)) if len(rows) == len(order) else on_device(rows, self.device)
        positions = torch.arange(max(self.sizes), device=self.device)
        bits = random_bits(keys[chosen, None], epoch[chosen, None] * _EPOCH + positions)
        drawn = bits.masked_fill(positions >= size[chosen, None], torch.iinfo(torch.int64).max).argsort(dim=1, stable=True)
        return drawn if isinstance(chosen, slice) else order.index_copy(0, chosen, drawn)
