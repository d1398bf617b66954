"""Clients' samples and the test set for evaluation: without randomness, in a fixed order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fl_lightning.data.client_test_sets import ClientTestSets
from fl_lightning.data.loaders import EvaluationBatches, EvaluationInputs
from fl_lightning.data.prepared_samples import PreparedSamples
from fl_lightning.data.present_shards import PresentShards
from fl_lightning.data.samples import Part
from fl_lightning.data.shards_of_tasks import ClassStreams
from fl_lightning.protocol import EvaluationName


@dataclass(frozen=True)
class EvaluationData:
    """The samples for the evaluation of nets."""

    samples: PreparedSamples
    shards: PresentShards
    has_validation: bool  # whether the global model has clients' validation parts
    monitor_test: int  # rounds of a fit between evaluations of the test set, which also follows the last round; 0 for never
    client_tests: ClientTestSets | None  # for personal models
    arriving: ClassStreams | None = None  # None: all classes are seen from the start

    @property
    def has_test(self) -> bool:
        """Whether there are test samples for the global model."""
        return len(self.samples.dataset.test) > 0

    @property
    def names(self) -> tuple[EvaluationName, ...]:
        """The sets that models are evaluated on, in order: ``val`` and ``test``, each if it has samples."""
        has_any_test = self.has_test or self.client_tests is not None
        there: dict[EvaluationName, bool] = {"val": self.has_validation, "test": has_any_test}
        return tuple(name for name in there if there[name])

    @property
    def monitors_test(self) -> bool:
        """Whether a fit evaluates the global test set at all."""
        return self.has_test and self.monitor_test > 0

    def loader(
        self, name: EvaluationName, batch_size: int, due: Callable[[], bool], rank: int, world_size: int
    ) -> EvaluationBatches:
        """All clients' validation parts, joined, or the test set, of the classes seen; this rank's batches.

        Args:
            due: called at the start of each pass; if false, the pass is empty.
        """
        part, indices = ("train", self._validation_indices) if name == "val" else ("test", self._test_indices)
        return EvaluationBatches(partial(self.samples.batches, part), indices, batch_size, due, rank, world_size)

    def validation_samples(self, clients: Sequence[int]) -> tuple[EvaluationInputs, Tensor, Tensor]:
        """Joined validation parts of some clients: inputs, targets (n,) and the position of each owner in ``clients``.

        With arriving classes, those of all tasks up to the present one, and only samples of the classes seen.
        """
        of_client = self.shards.validation_indices if self.arriving is None else self.shards.validation_so_far
        return self._joined([self._seen(of_client(client)) for client in clients])

    def training_samples(self, clients: Sequence[int]) -> tuple[EvaluationInputs, Tensor, Tensor]:
        """Joined training parts of some clients, each sample once; with arriving classes, those of the present task."""
        return self._joined([self._seen(self.shards.train_indices(client)) for client in clients])

    def samples_at(self, indices: Tensor, part: Part = "train") -> tuple[EvaluationInputs, Tensor]:
        """Samples by their indices, and their targets."""
        return self.samples.inputs(part, indices), self.samples.targets(part, indices)

    def client_samples(self, name: EvaluationName, clients: Sequence[int]) -> tuple[EvaluationInputs, Tensor, Tensor]:
        """Joined validation or test parts of some clients, which can be empty: as :meth:`validation_samples`."""
        if name == "val":
            return self.validation_samples(clients)
        tests = self.test_sets
        return self._joined([tests.of_client(client) for client in clients], tests.stored)

    @property
    def test_sets(self) -> ClientTestSets:
        """The test samples of each client.

        Raises:
            ValueError: if clients have none.
        """
        if self.client_tests is None:
            cure = " or give data.source a test set"
            if self.has_test:  # but nothing by which its samples could be dealt to clients
                cure = " as test samples are dealt to clients only where each has one unit, such as a class"
            raise ValueError(f"clients have no test samples: set data.test_fraction,{cure}")
        return self.client_tests

    def test_inputs(self) -> EvaluationInputs:
        """All test inputs."""
        return self.samples.inputs("test", self._test_indices())

    def test_targets(self) -> Tensor:
        """(n,), classes of all test inputs, on the device."""
        targets = self.samples.test.targets
        return targets if self.arriving is None else targets[self._test_indices().to(targets.device)]

    def test_tasks(self) -> Tensor:
        """(n,), tasks of all test inputs, with arriving classes.

        Raises:
            ValueError: if classes do not arrive.
        """
        if self.arriving is None:
            raise ValueError("test samples are of tasks where only classes arrive: give data.tasks a ClassStream")
        return self.arriving.test_task[self._test_indices()].to(self.samples.test.device)

    def _test_indices(self) -> Tensor:
        if self.arriving is None:
            return torch.arange(len(self.samples.test))
        return (self.arriving.test_task <= self.shards.newest_position).nonzero().flatten()

    def _validation_indices(self) -> Tensor:
        if self.arriving is None:
            return self.shards.shards.validation
        clients = range(len(self.shards.label_counts))
        # With cumulative tasks, or clients that share samples, a sample is in several parts.
        return self._seen(torch.cat([*map(self.shards.validation_so_far, clients)]).unique())

    def _seen(self, indices: Tensor) -> Tensor:
        """Those of some clients' samples whose class has arrived."""
        if self.arriving is None:
            return indices
        targets = self.arriving.dataset.train.targets[indices]
        return indices[targets < self.arriving.num_seen[self.shards.newest_position]]

    def _joined(self, parts: Sequence[Tensor], stored: Part = "train") -> tuple[EvaluationInputs, Tensor, Tensor]:
        owner = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor([len(part) for part in parts]))
        inputs, targets = self.samples_at(torch.cat([*parts]), stored)
        return inputs, targets, owner.to(targets.device)
