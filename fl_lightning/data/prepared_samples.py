"""A dataset's samples where a net wants them, and as it takes them."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from fl_lightning.data.loaders import EvaluationInputs
from fl_lightning.data.preparation import Preparation
from fl_lightning.data.samples import Dataset, Part, are_whole, type_name
from fl_lightning.data.scaling import InputRecord
from fl_lightning.data.storage import Storage, place_samples
from fl_lightning.protocol import Batch


class PreparedSamples:
    """The training and test samples of a dataset, on one device and in one precision at a time.

    Args:
        dataset: as loaded.
        preparation: of its inputs.
        storage: where inputs lie: on the ``device``, or ``stream``, on disk; ``auto`` goes by the memory.
        num_workers: threads that read ahead what is streamed; 0 for none.
    """

    def __init__(self, dataset: Dataset, preparation: Preparation, storage: Storage, num_workers: int) -> None:
        self.dataset, self.preparation = dataset, preparation
        self._storage: Storage = storage
        self._num_workers = num_workers

    def to(self, device: torch.device, dtype: torch.dtype, announce: bool) -> None:
        """Keep the samples for a net on ``device`` of precision ``dtype``.

        Args:
            announce: say so where they are streamed because they do not fit.
        """
        self.train, self.test = place_samples(self.dataset, device, self._storage, self._num_workers, announce)
        self.preparation.to(device, dtype)

    def batches(self, part: Part, indices: Sequence[Tensor]) -> Iterator[Batch]:
        """A batch for each tensor of indices, in evaluation mode."""
        samples = self.train if part == "train" else self.test
        for inputs, targets in samples.read(indices):
            yield Batch(self.preparation.for_evaluation(inputs), targets)

    def inputs(self, part: Part, indices: Tensor) -> EvaluationInputs:
        """Inputs in evaluation mode, (n, ...), made part by part."""
        return EvaluationInputs(partial(self.batches, part), indices)

    def targets(self, part: Part, indices: Tensor) -> Tensor:
        """(n,), classes of samples, on the device."""
        samples = self.train if part == "train" else self.test
        return samples.targets[indices.to(samples.device)]

    def first_inputs(self, count: int) -> Tensor:
        """A few training inputs as the net takes them in evaluation."""
        first = self.dataset.train.inputs[:count].clone()  # not a view: whoever counts its memory means these alone
        return self.preparation.for_evaluation(first.to(self.preparation.device))

    @property
    def inputs_are_whole(self) -> bool:
        """Whether the net is given whole numbers, such as token ids, of which there are no gradients."""
        return are_whole(self.dataset.train.inputs)

    @property
    def input_record(self) -> InputRecord:
        """What a trained net needs to be used elsewhere: the samples as stored, their statistics and the classes."""
        stored, shape, statistics = self.dataset.train.inputs, self.preparation.input_shape, self.preparation.statistics
        mean, std = (None, None) if statistics is None else (part.tolist() for part in statistics)
        return InputRecord(list(stored.shape[1:]), list(shape), type_name(stored), mean, std, list(self.dataset.classes))
