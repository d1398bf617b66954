"""Weighted sums of clients' uploads, taken as each client finishes, so that no process ever holds all models."""

import math
from collections.abc import Callable, Collection, KeysView, Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

import torch
from torch import Tensor

from fl_lightning.checks import ArgumentError
from fl_lightning.functional.aggregation import State
from fl_lightning.functional.finite import finite_rows
from fl_lightning.protocol import Reduction


class Shape(NamedTuple):
    """A tensor's shape, and the order of its values in memory."""

    sizes: tuple[int, ...]
    order: tuple[int, ...]  # of dimensions, the one with the largest stride first

    def columns(self, stacked: Tensor) -> Tensor:
        """The values of M tensors, (M, ...), in this order, (M, values): no copy if they are in this order."""
        if self.order != tuple(range(len(self.order))):
            stacked = stacked.permute(0, *(dim + 1 for dim in self.order))
        return stacked.reshape(len(stacked), -1)

    def tensor(self, values: Tensor) -> Tensor:
        """The tensor of such a column, sharing its memory."""
        laid_out = values.view([self.sizes[dim] for dim in self.order])
        return laid_out.permute([self.order.index(dim) for dim in range(len(self.order))])


Layout = dict[str, Shape]  # one upload name's tensors
# Beyond these a float64 sum of weight times float32 value overflows, or vanishes.
_SMALLEST_WEIGHT, _LARGEST_WEIGHT = 1e-100, 1e100
# Values of several clients, and of one, that are summed at a time: float64 copies of so many stay in the processor's cache.
_CPU_BLOCK, _CPU_BLOCK_OF_ONE = 1 << 18, 1 << 16
# Approximate limit of values joined on a GPU: a copy of all uploads of many clients can exceed the memory.
_JOINED = 1 << 26


def check_weight(what: str, weight: float) -> None:
    """Check a weight in a mean over clients.

    Args:
        what: ``... has the weight``, which begins the message.
        weight: weight of one client.

    Raises:
        ValueError: if it is neither 0 nor of a size that sums in float64 can hold.
    """
    if not isinstance(weight, int | float):
        raise TypeError(f"{what} {weight!r}, must be a number: give float(...)")
    if weight != 0 and not _SMALLEST_WEIGHT <= weight <= _LARGEST_WEIGHT:
        raise ValueError(f"{what} {weight}, must be 0 or from {_SMALLEST_WEIGHT:g} to {_LARGEST_WEIGHT:g}")


def _layout(tensors: State) -> Layout:
    """One client's tensors, of M clients' (M, ...), those of one type side by side, and in the same order for all clients."""
    return {key: _shape(tensors[key]) for key in sorted(tensors, key=lambda key: (str(tensors[key].dtype), key))}


def _check_alike(name: str, one: KeysView[str], *others: KeysView[str]) -> None:
    if odd := {key for other in others if other != one for key in other ^ one}:
        raise ValueError(
            f"an upload's {name!r} has {', '.join(sorted(odd))} from some clients only, so that they have no common mean: send "
            "each of them under an upload name of its own"
        )


def _shape(stacked: Tensor) -> Shape:
    strides = stacked.stride()[1:]
    return Shape(tuple(stacked.shape[1:]), tuple(sorted(range(len(strides)), key=lambda dim: -strides[dim])))


class _Total:
    """Sum of ``weight * tensor`` and of ``weight`` under one name of an upload, in float64."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.layout = layout
        size = sum(math.prod(shape.sizes) for shape in layout.values())
        self.flat = torch.zeros(size + 1, dtype=torch.float64, device=device)

    @property
    def weight(self) -> Tensor:
        return self.flat[-1]

    def tensors(self, values: Tensor) -> State:
        """The tensors of values in the memory order of the sums, sharing their memory."""
        parts = values.split([math.prod(shape.sizes) for shape in self.layout.values()])
        return {name: shape.tensor(part) for (name, shape), part in zip(self.layout.items(), parts, strict=True)}

    def lay_out(self, layout: Layout) -> None:
        """Put the sums into the order of another layout of the same tensors."""
        if layout != self.layout:
            sums = self.tensors(self.flat[:-1])
            columns = [shape.columns(sums[name][None])[0] for name, shape in layout.items()]
            self.layout, self.flat = layout, torch.cat([*columns, self.flat[-1:]])


class Sums(Reduction):
    """Sums ``weight * tensor`` and ``weight`` over clients for every name of an upload, in float64.

    An upload with a non-finite value counts with weight 0 throughout. The device decides this: nothing here waits for it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._totals: dict[str, _Total] = {}
        self.gathered_tensors: dict[int, dict[str, State]] = {}  # client -> name -> tensors

    @property
    def names(self) -> Collection[str]:
        return self._totals.keys()

    def add_weighted(
        self, uploads: dict[str, State], weights: Sequence[Tensor | float], admissible: Tensor, proven: Collection[str] = ()
    ) -> Tensor:
        """Count the finite uploads of M clients; returns which were counted, (M,) booleans.

        Args:
            uploads: by name, tensors (M, ...).
            weights: weight of each name, valid for :func:`check_weight`: a number, or (M,) float64 on the device.
            admissible: (M,) booleans: which clients can be counted.
            proven: names under which all that an admissible client sends is known to be finite.

        Raises:
            ValueError: if a name has other tensors than for the clients before.
        """
        self.reserve(uploads)
        sent: dict[str, list[Tensor]] = {}
        for name, tensors in uploads.items():
            _check_alike(name, tensors.keys(), self._totals[name].layout.keys())
            columns = [shape.columns(tensors[key]) for key, shape in self._totals[name].layout.items()]
            sent[name] = columns if self._device.type == "cpu" else joined(columns)
        unknown = [tensor for name, tensors in sent.items() if name not in proven for tensor in tensors]
        finite = finite_rows(unknown, len(admissible), self._device)
        counted = (admissible & finite.all(dim=0)).to(self._device)
        was_counted = counted.double()
        shown = None if are_known_to_count(counted) else counted[:, None]  # a factor of 0 is not enough: 0 times NaN is NaN
        for (name, tensors), of_clients in zip(sent.items(), weights, strict=True):
            total, factors = self._totals[name], was_counted * of_clients
            total.weight.add_(factors.sum())
            parts = total.flat[:-1].split([tensor.shape[1] for tensor in tensors])
            for part, tensor in zip(parts, tensors, strict=True):
                _add_weighted(part, tensor, factors, shown)
        return counted

    def keep(self, client: int, gathered: dict[str, State]) -> None:
        """Copy a client's gathered uploads, by name."""
        copies = {n: {k: tensor.detach().clone() for k, tensor in part.items()} for n, part in gathered.items()}
        self.gathered_tensors[client] = copies

    def _reserve(self, layouts: dict[str, Layout]) -> None:
        """Allocate sums for new names."""
        self._totals |= {name: _Total(layout, self._device) for name, layout in layouts.items()}

    def reserve(self, uploads: dict[str, State]) -> None:
        """Allocate missing sums for the tensors of M clients, (M, ...) by name."""
        self._reserve({name: _layout(tensors) for name, tensors in uploads.items() if name not in self._totals})

    @property
    def sums(self) -> list[Tensor]:
        """All sums of tensors and weights; additions change them in place."""
        return [total.flat for total in self._totals.values()]

    def clear(self) -> None:
        """Reset to 0, in the same memory."""
        for sums in self.sums:
            sums.zero_()

    def take(self, other: "Sums") -> None:
        """Add the sums of another object on the same device."""
        self._reserve({name: total.layout for name, total in other._totals.items() if name not in self._totals})
        for name, total in other._totals.items():
            _check_alike(name, total.layout.keys(), self._totals[name].layout.keys())
            self._totals[name].lay_out(total.layout)
            self._totals[name].flat.add_(total.flat)

    @property
    def layouts(self) -> dict[str, State]:
        """Of all sums, by name: sizes and order of each tensor's dimensions, (2, dimensions) int64."""
        return {
            name: {key: torch.tensor(shape, dtype=torch.int64).reshape(2, -1) for key, shape in total.layout.items()}
            for name, total in self._totals.items()
        }

    def agree(self, layouts: Sequence[dict[str, State]]) -> None:
        """Give the sums the same layout in all processes; ``layouts`` are those of each, in the same order everywhere.

        Raises:
            ValueError: in all processes, if a name has other tensors in one.
        """
        agreed = {name: layout for of_one in reversed(layouts) for name, layout in of_one.items()}
        for name, stored in agreed.items():
            _check_alike(name, stored.keys(), *(of_one[name].keys() for of_one in layouts if name in of_one))
            layout = {key: Shape(*(tuple(row) for row in shape.tolist())) for key, shape in stored.items()}
            self._reserve({name: layout} if name not in self._totals else {})
            self._totals[name].lay_out(layout)

    def sum_over_ranks(self, extra: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
        """Add up the totals of all processes, and ``extra`` with them, in one call of ``reduce``; returns ``extra``."""
        totals = [self._totals[name] for name in sorted(self._totals)]
        bucket = reduce(torch.cat([*(total.flat for total in totals), extra.reshape(-1).double()]))
        *parts, extra_sum = bucket.split([*(len(total.flat) for total in totals), extra.numel()])
        for total, part in zip(totals, parts, strict=True):
            total.flat = part
        return extra_sum.reshape(extra.shape)

    def gathered(self, name: str) -> dict[int, State]:
        return {client: parts[name] for client, parts in sorted(self.gathered_tensors.items()) if name in parts}

    def total_weight(self, name: str) -> Tensor:
        return self._total(name).weight

    def mean(self, name: str) -> State:
        if name not in self._totals and any(name in of_client for of_client in self.gathered_tensors.values()):
            raise ArgumentError(
                "aggregate", f"reads the mean of {name!r}, which client_result sends in a Gathered: use gathered"
            )
        total = self._total(name)
        return total.tensors(total.flat[:-1] / total.weight)

    def _total(self, name: str) -> _Total:
        if name in self._totals:
            return self._totals[name]
        problem = f"reads {name!r}, but client_result sends {sorted(self._totals)}: send it too, or see reduced.names first"
        raise ArgumentError("aggregate", problem)


def are_known_to_count(counted: Tensor) -> bool:
    """Whether the host sees at once that all of (M,) clients count: on a CPU, where it need not wait."""
    return counted.is_cpu and bool(counted.all())


def joined(columns: Sequence[Tensor]) -> list[Tensor]:
    """M clients' values, (M, values) each, joined to one such tensor a type, as on a GPU every operation costs a launch."""
    ends = accumulate(column.numel() for column in columns)
    kinds = [(column.dtype, end // _JOINED) for column, end in zip(columns, ends, strict=True)]
    groups = groupby(zip(kinds, columns, strict=True), key=lambda pair: pair[0])
    return [torch.cat([column for _, column in group], dim=1) for _, group in groups]


def _add_weighted(total: Tensor, columns: Tensor, factors: Tensor, shown: Tensor | None) -> None:
    """Add M clients' values, (M, values), times their factors, (M,), to ``total`` in place.

    Args:
        shown: clients with values that count, (M, 1); None: all.
    """
    block = _CPU_BLOCK_OF_ONE if len(columns) == 1 else _CPU_BLOCK // len(columns)
    width = max(block if total.device.type == "cpu" else total.numel(), 1)
    for part, values in zip(total.split(width), columns.split(width, dim=1), strict=True):
        values = values if shown is None else torch.where(shown, values, 0)
        if len(columns) == 1:
            part.addcmul_(values[0], factors)
        else:
            part.addmv_(values.double().t(), factors)
