"""A dataset's samples on the device of a net, in the form that it takes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from fl_lightning.checks import ArgumentError, kind_of
from fl_lightning.data.augment import Augmentation
from fl_lightning.data.loaders import EvaluationInputs
from fl_lightning.data.samples import Dataset, Part, Samples, are_whole, shapes, type_names
from fl_lightning.data.scaling import InputRecord, channel_statistics, normalise
from fl_lightning.data.storage import Storage, place_samples
from fl_lightning.functional.random_streams import random_bits
from fl_lightning.protocol import Batch, NetInputs

_IMAGES_CHANGED = 16  # to see what augmentation returns


class Preparation:
    """Stored samples as a net takes them, on its device and in its precision, which :meth:`to` sets.

    Args:
        stored: training samples.
        augment: changes to images, in order; in evaluation without randomness.
        mean, std: one value per channel, in [0, 1] for images; None: measured on ``stored``, if those are images.

    Raises:
        ValueError: if these do not fit together.
    """

    def __init__(
        self, stored: Samples, augment: Sequence[Augmentation], mean: Sequence[float] | None, std: Sequence[float] | None
    ) -> None:
        inputs = stored.inputs
        if augment and not (isinstance(inputs, Tensor) and inputs.ndim == 4):
            shape = shapes(inputs)
            raise ValueError(f"data.augment is for images, but data.source gives samples of shape {shape}: leave it out")
        if mean is not None and (are_whole(inputs) or not isinstance(inputs, Tensor)):
            kind = "whole numbers that are not images" if are_whole(inputs) else "several tensors a sample"
            raise ValueError(
                f"data.mean is {list(mean)}, but data.source gives {kind}: leave data.mean and data.std out, or give floats"
            )
        self.augment = tuple(augment)
        if isinstance(inputs, Tensor):
            _check_augment(self.augment, inputs[:_IMAGES_CHANGED])
        self._example = stored.rows(slice(1))
        self.statistics = None  # inputs are used as they are
        if isinstance(inputs, Tensor):
            self.statistics = channel_statistics(inputs, self._without_chance, mean, std)
        prepared = self._without_chance(self._example)
        self.input_shape = shapes(prepared)  # of one sample as the net takes it
        self.sample_values = sum(part.numel() for part in tree_leaves(prepared))
        self.to(torch.device("cpu"), torch.get_default_dtype())

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Prepare samples on this device, for a net of this precision."""
        self.device, self.dtype, self._scale = device, dtype, None
        if self.statistics is not None:
            multiply, add = self.statistics.scale(self._example)
            self._scale = (multiply.to(device, dtype), add.to(device, dtype))

    def augmented(self, images: Tensor, keys: Tensor, counters: Tensor) -> Tensor:
        """Images of local steps, changed by draws of their clients' streams.

        Args:
            images: (M * B, channels, height, width) as stored, of M clients.
            keys: (M,), keys of the clients' streams.
            counters: (M, B), counter of each image in its client's stream.
        """
        total = sum(augmentation.num_draws for augmentation in self.augment)
        draws = random_bits(keys[:, None, None], counters[..., None] * total + torch.arange(total, device=self.device))
        draws = draws.reshape(len(images), total).split([augmentation.num_draws for augmentation in self.augment], dim=1)
        for augmentation, values in zip(self.augment, draws, strict=True):
            images = augmentation(images, values)
        return images

    def for_evaluation(self, inputs: NetInputs) -> NetInputs:
        """Inputs in the shape of those for training, without randomness."""
        return self.normalise(self._without_chance(inputs))

    def of_unit_images(self, images: Tensor, keys: Tensor, counters: Tensor) -> Tensor:
        """Generated images of the stored shape, in [0, 1], changed as in local steps and normalised; with gradient.

        Args:
            images: (M * B, channels, height, width). Stored floats are taken to be in [0, 1], too.
            keys, counters: as in :meth:`augmented`.
        """
        changed = self.augmented(images, keys, counters) if self.augment else images
        return self.normalise(changed * 255 if self._example.dtype == torch.uint8 else changed)

    def normalise(self, inputs: NetInputs) -> NetInputs:
        """Augmented inputs as the net takes them: images in units of ``std`` about ``mean``; whole numbers unchanged."""
        return tree_map(lambda part: normalise(part, self._scale, self.dtype), inputs)

    def _without_chance(self, images: NetInputs) -> NetInputs:
        for augmentation in self.augment:
            images = augmentation.evaluate(images)
        return images


def _check_augment(augment: Sequence[Augmentation], images: Tensor) -> None:
    """Refuse changes that return anything but a batch of images of one shape and scale, by what they make of a few."""
    key = torch.zeros(1, dtype=torch.int64)
    for augmentation in augment:
        name = f"data.augment {type(augmentation).__name__}"
        numbers = torch.arange(len(images) * augmentation.num_draws).reshape(len(images), -1)
        before, images = images, augmentation.evaluate(images)
        for changed in (images, augmentation(before, random_bits(key, numbers))):
            if not isinstance(changed, Tensor) or changed.ndim != 4 or len(changed) != len(before):
                given = tuple(changed.shape) if isinstance(changed, Tensor) else kind_of(changed)
                raise ArgumentError(
                    name, f"returns {given}, must be a tensor of as many images as it is given, {tuple(before.shape)}"
                )
            if changed.shape != images.shape:
                sizes = f"{tuple(changed.shape[1:])} for training and {tuple(images.shape[1:])} for evaluation"
                raise ArgumentError(name, f"makes images of shape {sizes}: override evaluate, too")
            if changed.is_floating_point() and before.dtype == torch.uint8 and before.max() > 1 >= changed.max():
                raise ArgumentError(name, f"returns floats up to {changed.max():g} for images from 0 to 255: keep that scale")


class PreparedSamples:
    """The training and test samples of a dataset, on one device and in one precision at a time.

    ``storage`` and ``num_workers`` are those of :class:`~fl_lightning.data.FederatedDataModule`.
    """

    def __init__(self, dataset: Dataset, preparation: Preparation, storage: Storage, num_workers: int) -> None:
        self.dataset, self.preparation = dataset, preparation
        self._storage: Storage = storage
        self._num_workers = num_workers

    def to(self, device: torch.device, dtype: torch.dtype, announce: bool) -> None:
        """Keep the samples for a net on ``device`` with precision ``dtype``.

        Args:
            announce: whether to print that they are streamed because they do not fit.
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

    def first_inputs(self, count: int) -> NetInputs:
        """A few training inputs as the net takes them in evaluation."""
        device = self.preparation.device
        # Not a view, which would hold the memory of all.
        first = tree_map(lambda part: part.clone().to(device), self.dataset.train.rows(slice(count)))
        return self.preparation.for_evaluation(first)

    @property
    def inputs_are_whole(self) -> bool:
        """Whether some of the net's inputs are whole numbers, such as token ids, which have no gradients."""
        return are_whole(self.dataset.train.inputs)

    @property
    def input_record(self) -> InputRecord:
        """The facts for the use of a trained net: the form of stored samples, their statistics and the classes."""
        stored, shape, statistics = self.dataset.train.inputs, self.preparation.input_shape, self.preparation.statistics
        mean, std = (None, None) if statistics is None else (part.tolist() for part in statistics)
        as_stored, as_taken = _plain(shapes(stored)), _plain(shape)
        objective, classes = self.dataset.objective, list(self.dataset.classes)
        outputs = None if objective.tells_classes else objective.num_outputs(len(classes))
        return InputRecord(as_stored, as_taken, _plain(type_names(stored)), mean, std, classes, outputs)


def _plain(value: Any) -> Any:
    """A shape, a type, or a dict or tuple of some, with lists instead of tuples."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return [*map(_plain, value)] if isinstance(value, tuple) else value


@dataclass(frozen=True)
class PublicData:
    """The server's samples, in evaluation mode."""

    samples: PreparedSamples
    indices: Tensor  # of training samples, (data.public_size,)

    def __len__(self) -> int:
        return len(self.indices)

    def inputs(self) -> EvaluationInputs:
        """All inputs."""
        return self.samples.inputs("train", self.indices)

    def batches(self, positions: Sequence[Tensor]) -> Iterator[Batch]:
        """A batch for each tensor of positions among these samples."""
        return self.samples.batches("train", [self.indices[part] for part in positions])
