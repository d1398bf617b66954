"""MultiLabel: each sample has any number of labels."""

from collections.abc import Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_lightning.losses import TorchLoss
from fl_lightning.objectives.objective import Entries, Objective


class MultiLabel(Objective):
    """Several labels a sample: targets (n, L) are 0 or 1, outputs (n, L) logits; the units are the labels.

    A label is predicted where its logit is above 0. The score of a label is F1, ``2 TP / (2 TP + FP + FN)``; that of all
    labels is the micro average, over the sums. A label that is neither there nor predicted has none. The loss is binary
    cross entropy, in nats, the mean over labels. Partitions by class tell samples apart by their sets of labels.
    """

    loss = TorchLoss(nn.BCEWithLogitsLoss())
    torch_losses = (nn.BCEWithLogitsLoss,)

    def stored(self, name: str, targets: Tensor) -> Tensor:
        if targets.ndim != 2 or targets.shape[1] == 0:
            raise ValueError(
                f"data.source has {name} of shape {tuple(targets.shape)}, must be (samples, labels) for MultiLabel: give "
                "each sample a 0 or 1 for each label"
            )
        other = targets[(targets != 0) & (targets != 1)]
        if len(other) > 0:
            raise ValueError(f"data.source has {name} with {other[0].item()}, must be 0 or 1 for MultiLabel: correct it")
        return targets.to(torch.uint8)

    def fitted(self, train: Tensor, test: Tensor, names: Sequence[str] | None) -> tuple[Self, tuple[str, ...]]:
        return self, tuple(map(str, range(train.shape[1]))) if names is None else tuple(names)

    def check(self, part: str, targets: Tensor, num_units: int) -> None:
        if targets.ndim != 2 or targets.shape[1] != num_units:
            raise ValueError(
                f"data.source gives {part} targets of shape {tuple(targets.shape)}, must be (samples, {num_units}) for "
                f"{num_units} labels: name as many as there are columns"
            )

    def unit_counts(self, targets: Tensor, num_units: int) -> Tensor:
        return targets.long()

    def strata(self, targets: Tensor) -> Tensor:
        return targets.unique(dim=0, return_inverse=True)[1]

    def entries(self, outputs: Tensor, targets: Tensor) -> Entries:
        said, there = (outputs > 0).double(), targets.double()
        count, labels = targets.shape
        number = torch.arange(count * labels, device=targets.device)
        hits, weights = (2 * said * there).flatten(-2), (said + there).flatten(-2)
        return Entries(hits, number % labels, number.div(labels, rounding_mode="floor"), weights)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs.double(), targets.double(), reduction="none").flatten()
