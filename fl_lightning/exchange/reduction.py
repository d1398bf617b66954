"""Weighted sums of what clients send, taken as each client finishes, so that no process ever holds all models."""

import math
from collections.abc import Callable, Iterable
from itertools import accumulate, groupby
from typing import NamedTuple

import torch
from torch import Tensor

from fl_lightning.functional.aggregation import State
from fl_lightning.functional.finite import finite_rows
from fl_lightning.transfers import on_device


class Weighted(NamedTuple):
    """Named tensors and their weight in the mean over clients."""

    tensors: State
    weight: float
    derived: bool = False  # what the server can tell from the rest: it does not count as sent


class Gathered(NamedTuple):
    """Named tensors of a client that the server gets as they are, not summed with those of other clients."""

    tensors: State
    derived = False


Upload = dict[str, Weighted | Gathered]  # what a client sends: "weights", "buffers", and whatever a method adds, by name
Layout = dict[str, torch.Size]  # shapes of one upload name's tensors
# Beyond these a float64 sum of weight times float32 value overflows, or vanishes.
_SMALLEST_WEIGHT, _LARGEST_WEIGHT = 1e-100, 1e100
# Values that are summed at a time: a float64 copy of so many stays in the processor's cache, one of a whole net does not.
_CPU_BLOCK = 1 << 18
# Values that are joined on a GPU, at most and about: a copy of all that many clients send may be more than there is memory for.
_JOINED = 1 << 26


def check_weight(what: str, weight: float) -> None:
    """Check a weight in a mean over clients.

    Args:
        what: ``... has the weight``, which begins the message.
        weight: of one client.

    Raises:
        ValueError: if it is neither 0 nor of a size that sums in float64 can hold.
    """
    if weight != 0 and not _SMALLEST_WEIGHT <= weight <= _LARGEST_WEIGHT:
        raise ValueError(f"{what} {weight}, must be 0 or from {_SMALLEST_WEIGHT:g} to {_LARGEST_WEIGHT:g}")


def _layout(tensors: State) -> Layout:
    """Shapes of one client's tensors, those of one type side by side."""
    return {key: tensors[key].shape[1:] for key in sorted(tensors, key=lambda key: str(tensors[key].dtype))}


class _Total:
    """Sum of ``weight * tensor`` and of ``weight`` under one name of an upload, in float64."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.layout = layout
        self.flat = torch.zeros(sum(map(math.prod, layout.values())) + 1, dtype=torch.float64, device=device)

    @property
    def weight(self) -> Tensor:
        return self.flat[-1]

    @property
    def tensors(self) -> State:
        """The summed tensors, sharing memory with ``flat``."""
        parts = self.flat[:-1].split([math.prod(shape) for shape in self.layout.values()])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.layout.items(), parts, strict=True)}


class Update(NamedTuple):
    """What the server does with a round's mean."""

    pseudo_gradient: State  # by parameter name: global weights less the mean of the clients' weights
    buffers: State  # the mean of the clients' buffers, float64


class Reduction:
    """Sums ``weight * tensor`` and ``weight`` over clients for every name of an upload, in float64.

    An upload with a value that is not finite counts with weight 0 throughout. That is decided on the device: nothing here
    waits for it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._totals: dict[str, _Total] = {}
        self.gathered_tensors: dict[int, dict[str, State]] = {}  # client -> name -> tensors

    @property
    def layouts(self) -> dict[str, Layout]:
        """What has been counted so far."""
        return {name: total.layout for name, total in self._totals.items()}

    def add(self, upload: Upload, admissible: Tensor) -> Tensor:
        """Count one client's upload if it is finite and ``admissible``; gives whether it was, (1,) booleans.

        What is gathered is not counted here, but decides like the rest.
        """
        stacked = {
            name: ({key: tensor.detach()[None] for key, tensor in sent.tensors.items()}, [sent.weight])
            for name, sent in upload.items()
            if isinstance(sent, Weighted)
        }
        for sent in upload.values():
            if isinstance(sent, Gathered):
                admissible = admissible & are_finite([tensor[None] for tensor in sent.tensors.values()], 1, self._device)[0]
        return self.add_stacked(stacked, admissible[None])

    def add_stacked(self, uploads: dict[str, tuple[State, list[float]]], admissible: Tensor) -> Tensor:
        """Count the uploads of M clients, tensors (M, ...) and weights (M,) by name; gives who was counted, (M,) booleans.

        Raises:
            ValueError: for a weight that :func:`check_weight` refuses.
        """
        self.reserve({name: _layout(tensors) for name, (tensors, _) in uploads.items()})
        in_order = {name: [tensors[key] for key in self._totals[name].layout] for name, (tensors, _) in uploads.items()}
        sent = {name: self._joined(tensors) for name, tensors in in_order.items()}
        finite = are_finite([tensor for tensors in sent.values() for tensor in tensors], len(admissible), self._device)
        counted = (admissible & finite).to(self._device)
        for name, (_, weights) in uploads.items():
            what = f"an upload's {name!r} has the weight"
            for weight in weights:
                check_weight(what, weight)
        all_weights = on_device([weights for _, weights in uploads.values()], self._device, torch.float64)
        for (name, tensors), weights in zip(sent.items(), all_weights, strict=True):
            total, factors = self._totals[name], weights * counted
            total.weight.add_(factors.sum())
            parts = total.flat[:-1].split([math.prod(tensor.shape[1:]) for tensor in tensors])
            for part, tensor in zip(parts, tensors, strict=True):
                _add_weighted(part, tensor, factors, counted)
        return counted

    def _joined(self, tensors: list[Tensor]) -> list[Tensor]:
        """M clients' tensors, (M, ...) each; on a GPU, where every operation costs a launch, one (M, values) a type."""
        if self._device.type == "cpu":
            return tensors
        columns = [tensor.reshape(len(tensor), -1) for tensor in tensors]
        ends = accumulate(column.numel() for column in columns)
        kinds = [(column.dtype, end // _JOINED) for column, end in zip(columns, ends, strict=True)]
        groups = groupby(zip(kinds, columns, strict=True), key=lambda pair: pair[0])
        return [torch.cat([column for _, column in group], dim=1) for _, group in groups]

    def keep(self, client: int, gathered: dict[str, State]) -> None:
        """Copy what a client sent that is gathered, by name."""
        self.gathered_tensors[client] = {n: {k: tensor.clone() for k, tensor in p.items()} for n, p in gathered.items()}

    def reserve(self, layouts: dict[str, Layout]) -> None:
        """Allocate sums for new names; those of known names stay as they are."""
        for name, layout in layouts.items():
            if name not in self._totals:
                self._totals[name] = _Total(layout, self._device)

    def sum_over_ranks(self, extra: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
        """Add up the totals of all processes, and ``extra`` with them, in one call of ``reduce``; returns ``extra``."""
        totals = [self._totals[name] for name in sorted(self._totals)]
        bucket = reduce(torch.cat([*(total.flat for total in totals), extra.reshape(-1).double()]))
        *parts, extra_sum = bucket.split([*(len(total.flat) for total in totals), extra.numel()])
        for total, part in zip(totals, parts, strict=True):
            total.flat = part
        return extra_sum.reshape(extra.shape)

    def gathered(self, name: str) -> dict[int, State]:
        """By client, the tensors that those who sent any under a name sent; without clients whose upload was not finite."""
        return {client: parts[name] for client, parts in sorted(self.gathered_tensors.items()) if name in parts}

    def total_weight(self, name: str) -> Tensor:
        """Sum of the weights counted under a name, a float64 scalar."""
        return self._totals[name].weight

    def mean(self, name: str) -> State:
        """Weighted mean over clients of the tensors sent under a name, in float64."""
        total = self._totals[name]
        return {key: tensor / total.weight for key, tensor in total.tensors.items()}


def are_finite(tensors: Iterable[Tensor], num_clients: int, device: torch.device | None = None) -> Tensor:
    """Whether each client's values are all finite, (M,) booleans on their device; true without tensors.

    Args:
        tensors: (M, ...) each.
        num_clients: M.
        device: of the answer where there is no tensor.
    """
    return finite_rows(tensors, num_clients, device).all(dim=0)


def _add_weighted(total: Tensor, stacked: Tensor, factors: Tensor, counted: Tensor) -> None:
    """Add the M tensors of ``stacked``, (M, ...), times their factors, (M,), to ``total``, their values in order, in place."""
    columns = stacked.reshape(len(stacked), -1)
    width = max(_CPU_BLOCK // len(columns), 1) if total.device.type == "cpu" else max(total.numel(), 1)
    for part, block in zip(total.split(width), columns.split(width, dim=1), strict=True):
        # A factor of 0 is not enough: 0 times NaN is NaN.
        shown = torch.where(counted[:, None], block, 0)
        if len(columns) == 1:
            part.addcmul_(shown[0], factors)
        else:
            part.addmv_(shown.double().t(), factors)
