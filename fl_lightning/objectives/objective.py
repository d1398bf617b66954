"""Objective: the interface of engines, evaluation and callbacks to what a net is trained for."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_lightning.losses import CrossEntropy, Loss, TokenCrossEntropy, TorchLoss


class Entries(NamedTuple):
    """Scored answers of one or more models: one a sample, or one for each of its labels or tokens.

    A score over some entries is the sum of ``score`` over the sum of ``weight``, in [0, 1].
    """

    score: Tensor  # (..., E), float64
    unit: Tensor  # (E,), the unit of forgetting that the entry belongs to
    sample: Tensor | slice  # (E,), the sample that it belongs to; a slice: there is one entry a sample
    weight: Tensor | None = None  # (..., E), float64; None: each entry weighs 1

    @property
    def weights(self) -> Tensor:
        """``weight``, or ones."""
        return torch.ones_like(self.score) if self.weight is None else self.weight


class Objective(ABC):
    """What targets mean, and how outputs are scored against them.

    Scores are in [0, 1] and are logged as ``accuracy``. A *unit* is what a model can forget: a class, a label, a range of
    values, a group of texts. Per-class scores, heatmaps and label counts are of units.
    """

    loss: Loss
    """The loss that clients minimise by default."""

    torch_losses: tuple[type[nn.Module], ...]
    """The losses of torch that fit."""

    tells_classes: bool = False
    """Whether each sample has one class, which much of what the papers define needs."""

    @abstractmethod
    def stored(self, name: str, targets: Tensor) -> Tensor:
        """Targets of a source in the form in which they are kept.

        Raises:
            ValueError: naming ``name``, if they are of another kind.
        """

    @abstractmethod
    def fitted(self, train: Tensor, test: Tensor, names: Sequence[str] | None) -> tuple[Self, tuple[str, ...]]:
        """The objective for given targets, as they are kept, and the names of its units.

        Args:
            names: names of units that the user gave.
        """

    @abstractmethod
    def check(self, part: str, targets: Tensor, num_units: int) -> None:
        """Refuse targets that are no such targets; ``part`` is ``training`` or ``test``, for messages.

        Raises:
            ValueError: with the first wrong value.
        """

    @abstractmethod
    def unit_counts(self, targets: Tensor, num_units: int) -> Tensor:
        """The unit of each sample, (n,), or how many entries of each unit a sample has, (n, U)."""

    def count_units(self, targets: Tensor, num_units: int) -> Tensor:
        """(U,), how many entries of each unit some samples have."""
        units = self.unit_counts(targets, num_units)
        return units.bincount(minlength=num_units) if units.ndim == 1 else units.sum(dim=0)

    @abstractmethod
    def strata(self, targets: Tensor) -> Tensor | None:
        """(n,), the whole number by which partitions tell samples apart; None if there is none."""

    def num_outputs(self, num_units: int) -> int:
        """Outputs of the net for a sample, or for a place of its sequence."""
        return num_units

    def output_shape(self, targets: Tensor, num_units: int) -> tuple[int, ...]:
        """Shape of the net's outputs for targets (B, ...)."""
        return len(targets), self.num_outputs(num_units)

    @abstractmethod
    def entries(self, outputs: Tensor, targets: Tensor) -> Entries:
        """Scores of outputs (..., n, ...) of one or more models."""

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(E,), float64: the loss of each entry of one model, whatever clients minimise."""

    def also(self, loss: Tensor) -> dict[str, Tensor]:
        """Further scalars from the mean loss of the entries, by name."""
        return {}

    def loss_for(self, loss: Loss) -> Loss:
        """The loss of a method; cross entropy, its default, is that of the objective.

        Raises:
            ValueError: if the loss needs targets of another kind.
        """
        if type(loss) is CrossEntropy:
            return self.loss
        if isinstance(loss, TorchLoss):
            fits = isinstance(loss.loss, self.torch_losses)
        elif isinstance(loss, TokenCrossEntropy):
            fits = isinstance(self.loss, TokenCrossEntropy)
        else:
            fits = self.tells_classes or not loss.needs_classes
        if fits:
            return loss
        fitting = " or ".join(f"torch.nn.{kind.__name__}" for kind in self.torch_losses)
        raise ValueError(
            f"model.loss is {loss!r}, which does not fit the targets of {type(self).__name__}: leave it out"
            f"{fitting and f', or give {fitting}'}"
        )

    def score_by_owner(self, outputs: Tensor, targets: Tensor, owner: Tensor, num_owners: int) -> Tensor:
        """Score on each owner's samples for one or more models, from one pass over all samples.

        Args:
            outputs: (..., n, ...).
            targets: (n, ...).
            owner: (n,), which owner each sample belongs to.
            num_owners: K.

        Returns:
            (..., K); NaN for owners without samples.
        """
        entries = self.entries(outputs, targets)
        return _mean_by_owner(entries.score, entries.weight, owner[entries.sample], num_owners)

    def score_by_unit(self, outputs: Tensor, targets: Tensor, num_units: int) -> Tensor:
        """(..., U), score of each unit for one or more models; NaN for units without entries."""
        entries = self.entries(outputs, targets)
        return _mean_by_owner(entries.score, entries.weight, entries.unit, num_units)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(...), score on all samples for one or more models."""
        return self.score_by_owner(outputs, targets, _one_owner(targets), 1)[..., 0]

    def loss_by_owner(self, outputs: Tensor, targets: Tensor, owner: Tensor, num_owners: int) -> Tensor:
        """Mean loss on each owner's samples for one or more models: as :meth:`score_by_owner`, float64."""
        # Model by model: a float64 copy of all outputs would be twice their size.
        shape = outputs.shape[: outputs.ndim - len(self.output_shape(targets, 1))]  # of models
        models = outputs.reshape(shape.numel(), *outputs.shape[len(shape) :])
        losses = torch.stack([self.losses(model, targets) for model in models])
        owner = owner[self.entries(models[0], targets).sample]
        return _mean_by_owner(losses, None, owner, num_owners).reshape(*shape, num_owners)

    def mean_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(...), mean loss of the entries of one or more models, float64."""
        return self.loss_by_owner(outputs, targets, _one_owner(targets), 1)[..., 0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _one_owner(targets: Tensor) -> Tensor:
    return torch.zeros(len(targets), dtype=torch.int64, device=targets.device)


def _mean_by_owner(values: Tensor, weights: Tensor | None, owner: Tensor, num_owners: int) -> Tensor:
    """From float64 values (..., n) to (..., K)."""
    one_hot = F.one_hot(owner, num_owners).double()
    return values @ one_hot / (one_hot.sum(dim=0) if weights is None else weights @ one_hot)
