"""Regression: each sample has a value."""

import copy
import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from fl_lightning.checks import check_range, check_whole
from fl_lightning.losses import TorchLoss
from fl_lightning.objectives.objective import Entries, Objective


class Regression(Objective):
    """Values: targets (n,) are finite numbers, outputs (n, 1); the units are bins of the targets.

    The score is the share of samples that are predicted to within ``tolerance``, the loss the squared error, and ``rmse`` its
    root. Bins are cut at quantiles of the training targets; partitions by class deal bins.

    Args:
        bins: number of bins, fewer where some would have no training target, as with few different ones.
        tolerance: largest error that counts as right, in units of the targets; None: half the deviation of the training
            targets.

    Raises:
        ValueError: if one of them is out of range, or all training targets are equal and there is no ``tolerance``.
    """

    loss = TorchLoss(nn.MSELoss())
    torch_losses = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)

    def __init__(self, bins: int = 10, tolerance: float | None = None) -> None:
        check_whole("Regression.bins", bins, at_least=1)
        if tolerance is not None:
            check_range("Regression.tolerance", tolerance, above=0, below=math.inf)
        self.bins, self.tolerance = bins, tolerance
        self.edges = torch.empty(0)  # (U - 1,), between bins, ascending

    def stored(self, name: str, targets: Tensor) -> Tensor:
        targets = targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets
        if targets.ndim != 1:
            raise ValueError(
                f"data.source has {name} of shape {tuple(targets.shape)}, must be (samples,) for Regression: give one value a "
                "sample"
            )
        return targets.float().contiguous()

    def fitted(self, train: Tensor, test: Tensor, names: Sequence[str] | None) -> tuple[Self, tuple[str, ...]]:
        fitted, values = copy.copy(self), train[train.isfinite()].double()
        if len(values) > 0:
            edges = values.quantile(torch.linspace(0, 1, self.bins + 1).double()[1:-1]).float().unique()
            edges = edges[edges < values.max()]
            held = torch.bucketize(values.float(), edges).bincount(minlength=len(edges) + 1)
            fitted.edges = edges[held[:-1] > 0]
            if self.tolerance is None:
                if (values == values[0]).all():
                    raise ValueError(
                        f"data.source has only training targets of {values[0].item():g}, of which Regression gets no "
                        "tolerance: check the targets, or give it one"
                    )
                fitted.tolerance = float(values.std(correction=0)) / 2
        cuts = [f"{edge:.4g}" for edge in fitted.edges.tolist()]
        found = ["all values"]
        if cuts:
            found = [f"{low} to {high}" for low, high in zip(["", *cuts], [*cuts, ""], strict=True)]
            found[0], found[-1] = f"up to {cuts[0]}", f"above {cuts[-1]}"
        named = found if names is None else list(names)
        if len(named) != len(found):
            raise ValueError(f"data.source names {len(named)} classes, must name the {len(found)} bins: leave the names out")
        return fitted, tuple(f"{name} ({number})" if named.count(name) > 1 else name for number, name in enumerate(named))

    def check(self, part: str, targets: Tensor, num_units: int) -> None:
        if targets.ndim != 1:
            raise ValueError(
                f"data.source gives {part} targets of shape {tuple(targets.shape)}, must be (samples,) for Regression: give "
                "one value a sample"
            )
        wrong = (~targets.isfinite()).nonzero()
        if len(wrong) > 0:
            raise ValueError(
                f"data.source has {targets[wrong[0, 0]].item()} as {part} target {int(wrong[0, 0])}, which is not finite in "
                "float32: replace the value, or leave the sample out"
            )

    def unit_counts(self, targets: Tensor, num_units: int) -> Tensor:
        return torch.bucketize(targets, self.edges.to(targets.device))

    def strata(self, targets: Tensor) -> Tensor:
        return torch.bucketize(targets, self.edges)

    def num_outputs(self, num_units: int) -> int:
        return 1

    def entries(self, outputs: Tensor, targets: Tensor) -> Entries:
        if self.tolerance is None:
            raise RuntimeError("the objective is not fitted to targets yet: call fitted() first")
        within = (outputs[..., 0].double() - targets.double()).abs() <= self.tolerance
        return Entries(within.double(), self.unit_counts(targets, len(self.edges) + 1), slice(None))

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs[..., 0].double() - targets.double()).square()

    def also(self, loss: Tensor) -> dict[str, Tensor]:
        return {"rmse": loss.sqrt()}

    def __repr__(self) -> str:
        return f"Regression(bins={self.bins}, tolerance={self.tolerance})"
