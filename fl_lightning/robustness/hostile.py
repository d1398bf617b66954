"""Hostile: clients that try to ruin the model, as a part of any method."""

from typing import Any

import torch
from torch import Tensor

from fl_lightning.checks import check_range, class_and_settings
from fl_lightning.functional.random_streams import numpy_stream
from fl_lightning.protocol import Batch, Client, overridden


class Hostile:
    """Some clients are hostile from the first round on. Who they are depends on the seed only.

    Args:
        fraction: share of hostile clients, above 0 and below 1; at least one client is hostile.

    Attributes:
        flips_labels: whether hostile clients train on other labels, class c in place of C - 1 - c.
        corrupts_uploads: whether they send other weights than those that they trained; the server replaces them.

    Raises:
        ValueError: if ``fraction`` is out of range.
    """

    flips_labels: bool = False
    corrupts_uploads: bool = False

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if overridden(cls, Hostile.changes) and not cls.corrupts_uploads:
            raise TypeError(f"{cls.__name__}.changes is not called while corrupts_uploads is False: set it to True there")

    def __init__(self, fraction: float = 0.2) -> None:
        changed = overridden(self, Hostile.batch, Hostile.label_counts)
        if not (self.flips_labels or self.corrupts_uploads or changed):
            raise ValueError(
                f"model.hostile is {type(self).__name__}, which attacks nothing: give LabelFlip, SignFlip, ALIE or another, or "
                "override changes in a class with corrupts_uploads = True"
            )
        check_range("model.hostile.fraction", fraction, above=0, below=1, hint="null leaves all clients honest")
        self.fraction = fraction
        self._are_hostile = torch.empty(0, dtype=torch.bool)

    def __repr__(self) -> str:
        return class_and_settings(self)

    def clients(self, num_clients: int, seed: int) -> list[int]:
        """The hostile clients, ascending."""
        count = max(int(self.fraction * num_clients + 1e-9), 1)
        return sorted(numpy_stream(seed, -1, -1, "hostile clients").choice(num_clients, count, replace=False).tolist())

    def begin(self, num_clients: int, seed: int, device: torch.device) -> None:
        """Note the hostile clients on the device that trains."""
        hostile = torch.tensor(self.clients(num_clients, seed), device=device)
        self._are_hostile = torch.zeros(num_clients, dtype=torch.bool, device=device).index_fill_(0, hostile, True)

    def batch(self, batch: Batch, client: Client) -> Batch:
        """A batch of a local step, with the labels that its client trains on."""
        if not self.flips_labels:
            return batch
        flipped = len(client.label_counts) - 1 - batch.targets
        return batch._replace(targets=torch.where(self._are_hostile[client.index], flipped, batch.targets))

    def label_counts(self, counts: Tensor, clients: int | Tensor) -> Tensor:
        """The label counts of a client, (C,), or of several, (M, C), as they train."""
        if not self.flips_labels:
            return counts
        return torch.where(self._are_hostile[clients][..., None], counts.flip(-1), counts)

    def changes(self, own: Tensor, honest: Tensor) -> Tensor:
        """The changes that the H hostile clients of a round send, (H, n), of some coordinates of the weights.

        Args:
            own: the changes that they trained, (H, n).
            honest: the changes of the others, (G, n); without any, ``own``.
        """
        return own
