"""SingleLabel: each sample has one class."""

from collections.abc import Sequence
from typing import Self

import torch.nn.functional as F
from torch import Tensor, nn

from fl_lightning.losses import CrossEntropy
from fl_lightning.objectives.objective import Entries, Objective


class SingleLabel(Objective):
    """Classification: targets (n,) are class indices, outputs (n, C) logits; the units are the classes.

    The score is accuracy, the loss cross entropy in nats.
    """

    loss = CrossEntropy()
    torch_losses = (nn.CrossEntropyLoss, nn.NLLLoss)
    tells_classes = True

    def stored(self, name: str, targets: Tensor) -> Tensor:
        return targets.long()

    def fitted(self, train: Tensor, test: Tensor, names: Sequence[str] | None) -> tuple[Self, tuple[str, ...]]:
        return self, tuple(names or ())

    def check(self, part: str, targets: Tensor, num_units: int) -> None:
        if targets.ndim != 1:
            raise ValueError(
                f"data.source gives {part} targets of shape {tuple(targets.shape)}, must be (samples,): give the index of one "
                "class for each sample, or, to Arrays, an objective of fl_lightning.objectives"
            )
        outside = targets[(targets < 0) | (targets >= num_units)]
        if len(outside) > 0:
            raise ValueError(
                f"data.source has the {part} label {int(outside[0])}, must be between 0 and {num_units - 1} "
                f"for {num_units} classes: correct the labels or name more classes"
            )

    def unit_counts(self, targets: Tensor, num_units: int) -> Tensor:
        return targets

    def strata(self, targets: Tensor) -> Tensor:
        return targets

    def entries(self, outputs: Tensor, targets: Tensor) -> Entries:
        return Entries((outputs.argmax(dim=-1) == targets).double(), targets, slice(None))

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.double(), targets, reduction="none")
