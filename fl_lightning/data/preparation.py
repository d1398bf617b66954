"""How stored samples become what a net is given: changed by ``data.augment``, then normalised."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning.data.augment import Augmentation
from fl_lightning.data.samples import are_whole
from fl_lightning.data.scaling import channel_statistics, normalise
from fl_lightning.functional.random_streams import random_bits


class Preparation:
    """Stored samples as a net takes them, on its device and in its precision, which :meth:`to` sets.

    Args:
        stored: (n, ...) training inputs.
        augment: changes to images, in order; in evaluation without chance.
        mean, std: one value a channel, in [0, 1] for images; None: measured on ``stored``, where those are images.

    Raises:
        ValueError: if these do not go together.
    """

    def __init__(
        self, stored: Tensor, augment: Sequence[Augmentation], mean: Sequence[float] | None, std: Sequence[float] | None
    ) -> None:
        if augment and stored.ndim != 4:
            shape = tuple(stored.shape[1:])
            raise ValueError(f"data.augment is for images, but data.source gives samples of shape {shape}: leave it out")
        if mean is not None and are_whole(stored):
            raise ValueError(
                f"data.mean is {list(mean)}, but data.source gives whole numbers that are no images: leave "
                "data.mean and data.std out, or give floats"
            )
        self.augment = tuple(augment)
        self._example = stored[:1]
        self.statistics = channel_statistics(stored, self._without_chance, mean, std)  # None: inputs are used as they are
        self.input_shape = tuple(self._without_chance(self._example).shape[1:])  # of one sample as the net takes it
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
            keys: (M,), of the clients' streams.
            counters: (M, B), of each image in its client's stream.
        """
        total = sum(augmentation.num_draws for augmentation in self.augment)
        draws = random_bits(keys[:, None, None], counters[..., None] * total + torch.arange(total, device=self.device))
        draws = draws.reshape(len(images), total).split([augmentation.num_draws for augmentation in self.augment], dim=1)
        for augmentation, values in zip(self.augment, draws, strict=True):
            images = augmentation(images, values)
        return images

    def for_evaluation(self, inputs: Tensor) -> Tensor:
        """Inputs in the shape of those for training, with nothing random about them."""
        return self.normalise(self._without_chance(inputs))

    def normalise(self, inputs: Tensor) -> Tensor:
        """Changed inputs as the net takes them: images in units of ``std`` about ``mean``; whole numbers as they are."""
        return normalise(inputs, self._scale, self.dtype)

    def _without_chance(self, images: Tensor) -> Tensor:
        for augmentation in self.augment:
            images = augmentation.evaluate(images)
        return images
