"""Weighted sums of what clients send, taken as each client finishes, so that no process ever holds all models."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fl_lightning.functional.aggregation import State


class Weighted(NamedTuple):
    """Named tensors and their weight in the mean over clients."""

    tensors: State
    weight: float


Upload = dict[str, Weighted]  # what a client sends: "weights", "buffers", and whatever a method adds, by name


class _Layout(NamedTuple):
    """How one name's tensors lie in its flat total."""

    names: list[str]
    shapes: list[torch.Size]


class Reduction:
    """Sums ``weight * tensor`` and ``weight`` over clients for every name of an upload, in float64.

    An upload with a value that is not finite counts with weight 0 throughout. That is decided on the device: nothing here
    waits for it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.layouts: dict[str, _Layout] = {}
        self._totals: dict[str, Tensor] = {}  # (sum of sizes + 1,): the weighted values, then the weight

    def add(self, upload: Upload, admissible: Tensor) -> Tensor:
        """Count one client's upload if it is finite and ``admissible``; returns whether it was, a boolean on the device."""
        flat = {name: _flatten(sent.tensors, self._device) for name, sent in upload.items()}
        finite = are_finite(flat).to(self._device) & admissible.to(self._device)
        for name, sent in upload.items():
            if name not in self._totals:
                self.reserve({name: _Layout(list(sent.tensors), [tensor.shape for tensor in sent.tensors.values()])})
            # A weight of 0 is not enough: 0 times NaN is NaN.
            self._totals[name][:-1].add_(torch.where(finite, flat[name], 0), alpha=sent.weight)
            self._totals[name][-1] += finite * sent.weight
        return finite

    def reserve(self, layouts: dict[str, _Layout]) -> None:
        """Make room for names that another process counts; names known already are left as they are."""
        for name, layout in layouts.items():
            if name not in self._totals:
                size = sum(math.prod(shape) for shape in layout.shapes)
                self.layouts[name] = layout
                self._totals[name] = torch.zeros(size + 1, dtype=torch.float64, device=self._device)

    def sum_over_ranks(self, extra: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
        """Add up the totals of all processes, and ``extra`` with them, in one call of ``reduce``; returns ``extra``."""
        names = sorted(self._totals)
        bucket = reduce(torch.cat([*(self._totals[name] for name in names), extra.reshape(-1).double()]))
        *totals, extra_sum = bucket.split([*(len(self._totals[name]) for name in names), extra.numel()])
        self._totals = dict(zip(names, totals, strict=True))
        return extra_sum.reshape(extra.shape)

    def total_weight(self, name: str) -> Tensor:
        """Sum of the weights counted under a name, a float64 scalar."""
        return self._totals[name][-1]

    def mean(self, name: str) -> State:
        """Weighted mean over clients of the tensors sent under a name, in float64."""
        layout, total = self.layouts[name], self._totals[name]
        sizes = [math.prod(shape) for shape in layout.shapes]
        parts = (total[:-1] / total[-1]).split(sizes)
        return {key: part.reshape(shape) for key, part, shape in zip(layout.names, parts, layout.shapes, strict=True)}


def are_finite(tensors: State) -> Tensor:
    """Whether every value of some tensors is finite, a boolean scalar on their device; true without tensors."""
    # A sum in float64 is not finite exactly where a float32 value is not, in one pass and without a mask.
    sums = [tensor.sum(dtype=torch.float64) for tensor in tensors.values()]
    return torch.stack(sums).sum().isfinite() if sums else torch.tensor(True)


def _flatten(tensors: State, device: torch.device) -> Tensor:
    """All values in one vector; integers as float64, since counters must survive the mean exactly."""
    values = [tensor.detach() if tensor.is_floating_point() else tensor.double() for tensor in tensors.values()]
    return torch.cat([value.reshape(-1) for value in values]) if values else torch.zeros(0, device=device)
