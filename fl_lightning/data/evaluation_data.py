"""Clients' samples and the test set as evaluation sees them: nothing about them random, in a fixed order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fl_lightning.data.loaders import EvaluationBatches, EvaluationInputs
from fl_lightning.data.prepared_samples import PreparedSamples
from fl_lightning.data.present_shards import PresentShards


@dataclass(frozen=True)
class EvaluationData:
    """What a net is evaluated on.

    Args:
        samples: of all clients, and the test set.
        shards: who holds which of them.
    """

    samples: PreparedSamples
    shards: PresentShards

    def loader(
        self, name: Literal["val", "test"], batch_size: int, due: Callable[[], bool], rank: int, world_size: int
    ) -> EvaluationBatches:
        """All clients' validation parts, joined, or the test set; this rank's batches.

        Args:
            due: asked at the start of each pass; if false the pass is empty.
        """
        part, indices = ("train", self.shards.shards.validation) if name == "val" else ("test", self._test_indices)
        return EvaluationBatches(partial(self.samples.batches, part), indices, batch_size, due, rank, world_size)

    def validation_samples(self, clients: Sequence[int]) -> tuple[EvaluationInputs, Tensor, Tensor]:
        """Joined validation parts of some clients: inputs, targets (n,) and the position of each owner in ``clients``."""
        return self._joined([self.shards.validation_indices(client) for client in clients])

    def training_samples(self, clients: Sequence[int]) -> tuple[EvaluationInputs, Tensor, Tensor]:
        """Likewise their joined training parts, each sample once."""
        return self._joined([self.shards.train_indices(client) for client in clients])

    def samples_at(self, indices: Tensor) -> tuple[EvaluationInputs, Tensor]:
        """Training samples by their indices, and their targets."""
        return self.samples.inputs("train", indices), self.samples.training_targets(indices)

    def test_inputs(self) -> EvaluationInputs:
        """All test inputs."""
        return self.samples.inputs("test", self._test_indices)

    @property
    def _test_indices(self) -> Tensor:
        return torch.arange(len(self.samples.test))

    def _joined(self, parts: Sequence[Tensor]) -> tuple[EvaluationInputs, Tensor, Tensor]:
        owner = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor([len(part) for part in parts]))
        inputs, targets = self.samples_at(torch.cat([*parts]))
        return inputs, targets, owner.to(targets.device)
