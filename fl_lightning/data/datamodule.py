"""The data of a federation: who holds what, who takes part in which round, and what one client's step sees."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor

from fl_lightning.data.augment import Augmentation
from fl_lightning.data.batches import Visits
from fl_lightning.data.loaders import EvaluationBatches, Rounds
from fl_lightning.data.partitions import Dirichlet, Fixed, Partition
from fl_lightning.data.samples import Batch, Dataset, Samples
from fl_lightning.data.shards import ClientShards, split_clients
from fl_lightning.data.sources import Arrays, Source, open_source
from fl_lightning.streams import numpy_stream, random_bits, stream_seed


class FederatedDataModule(LightningDataModule):
    """Shares a data set out among clients and serves them their batches from the device.

    Images stay uint8 on the device; batches are gathered, augmented, scaled to [0, 1] and normalised there. Float inputs are
    used as they are, unless ``mean`` and ``std`` are given.

    Args:
        source: ``digits``, ``image_folder``, the name of a torchvision classification set, or a :class:`Source`.
        root: folder of the data set; torchvision sets are downloaded into it.
        num_clients: clients in the federation, N.
        clients_per_round: size of a cohort; a whole number is a count, a number with a point is a fraction of the clients
            (``0.1``; ``1.0`` is all of them), of which at least one takes part.
        batch_size: samples of a local step; the last batch of an epoch may be smaller. None: a client's shard is one batch.
        partition: how the training set is shared out.
        val_fraction: part of each client's samples that it validates on, in [0, 1); 0 for none.
        monitor_test: evaluate the global test set every so many rounds of a fit and after the last, never used to choose a
            model; 0 for never. Only in rounds that are validated (``trainer.val_check_interval``).
        augment: random changes to training images, in order.
        mean: per channel, in [0, 1] for images; by default measured on the training set.
        std: likewise.
        cohorts: the clients of round 1, 2, ..., instead of drawing ``clients_per_round`` at random without replacement.
        eval_batch_size: samples of an evaluation step.
        seed: of partition, splits, cohorts and batches; ``seed_everything`` on the command line.

    Raises:
        ValueError: if a value is out of range, before any data is read.
    """

    def __init__(
        self,
        source: str | Source = "digits",
        root: str = "data",
        num_clients: int = 100,
        clients_per_round: int | float = 10,
        batch_size: int | None = 64,
        partition: Partition = Dirichlet(alpha=0.1),
        val_fraction: float = 0.1,
        monitor_test: int = 10,
        augment: Sequence[Augmentation] = (),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        cohorts: Sequence[Sequence[int]] | None = None,
        eval_batch_size: int = 500,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.source, self.root, self.partition, self.seed = open_source(source), Path(root), partition, seed
        self.num_clients, self.batch_size, self.val_fraction = num_clients, batch_size, val_fraction
        self.monitor_test, self.augment, self.mean, self.std = monitor_test, tuple(augment), mean, std
        self.cohorts, self.eval_batch_size = cohorts, eval_batch_size
        self._check_settings()
        self.cohort_size = _cohort_size(clients_per_round, num_clients) if cohorts is None else None
        self.device: torch.device | None = None
        self.dtype: torch.dtype | None = None
        self._dataset: Dataset | None = None

    def _check_settings(self) -> None:
        at_least_one = {"num_clients": self.num_clients, "batch_size": self.batch_size, "eval_batch_size": self.eval_batch_size}
        for name, value in at_least_one.items():
            if (value is None and name != "batch_size") or (value is not None and value < 1):
                raise ValueError(f"data.{name} is {value}, must be at least 1")
        if not 0 <= self.val_fraction < 1:
            raise ValueError(f"data.val_fraction is {self.val_fraction}, must be at least 0 and below 1: the papers use 0.1")
        if self.monitor_test < 0:
            raise ValueError(f"data.monitor_test is {self.monitor_test}, must be at least 0: 0 leaves the test set alone")
        if (self.mean is None) != (self.std is None):
            raise ValueError(f"data.mean is {self.mean} and data.std is {self.std}: give both or neither")
        if self.mean is not None and self.std is not None and not len(self.mean) == len(self.std) >= 1:
            raise ValueError(
                f"data.mean is {list(self.mean)} and data.std is {list(self.std)}, must have one value a channel each"
            )
        if self.std is not None and min(self.std) <= 0:
            raise ValueError(f"data.std is {list(self.std)}, must be above 0 in every channel")
        for cohort in self.cohorts or ():
            if not cohort or len(set(cohort)) != len(cohort) or not all(0 <= client < self.num_clients for client in cohort):
                raise ValueError(
                    f"data.cohorts has the cohort {list(cohort)}, must name clients between 0 and {self.num_clients - 1}, "
                    "each once and at least one"
                )

    def setup(self, stage: str | None = None) -> None:
        """Read the source and share it out; a second call does nothing.

        Raises:
            FileNotFoundError: if the data set is not there and cannot be fetched.
            ValueError: if it cannot be read, or leaves a client without samples.
        """
        if self._dataset is not None:
            return
        dataset = self.source.load(self.root)
        labels = dataset.train.targets
        parts = self.partition(labels, self.num_clients, stream_seed(self.seed, -1, -1, "partition"))
        rng = numpy_stream(self.seed, -1, -1, "validation split")
        self.shards: ClientShards = split_clients(parts, labels, len(dataset.classes), self.val_fraction, rng)
        self._train_start: list[int] = self.shards.train_start.tolist()
        self._scale = _scale(dataset.train.inputs, self.mean, self.std)
        self.train_set, self.test_set = dataset.train, dataset.test
        self._dataset = dataset
        self.to(torch.device("cpu"), torch.get_default_dtype())

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Keep the samples on ``device`` and hand them out as ``dtype``; costs nothing where that is so already."""
        if (device, dtype) == (self.device, self.dtype):
            return
        self.device, self.dtype = device, dtype
        self.train_set, self.test_set = self.train_set.to(device), self.test_set.to(device)
        self._train_indices = self.shards.train.to(device)
        self.label_counts = self.shards.label_counts.to(device)
        self.train_label_counts = self.shards.train_label_counts.to(device)
        if self._scale is not None:
            self._multiply, self._add = (part.to(device, dtype) for part in self._scale)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in label order."""
        return self._loaded.classes

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample: (channels, height, width) for images."""
        return tuple(self._loaded.train.inputs.shape[1:])

    @property
    def has_validation(self) -> bool:
        return self.val_fraction > 0

    @property
    def has_test(self) -> bool:
        return len(self._loaded.test) > 0

    @property
    def _loaded(self) -> Dataset:
        if self._dataset is None:
            raise RuntimeError("the data is not loaded yet: call setup() first")
        return self._dataset

    def cohort(self, round: int) -> list[int]:
        """The clients of a round (counted from 1), ascending; a function of the seed and the round alone."""
        if self.cohorts is not None:
            if not 1 <= round <= len(self.cohorts):
                raise ValueError(
                    f"data.cohorts names {len(self.cohorts)} rounds, round {round} is asked for: lower trainer.max_steps"
                )
            return sorted(self.cohorts[round - 1])
        # NumPy's draw without replacement takes time in proportion to the cohort, not to the population.
        rng = numpy_stream(self.seed, round, -1, "cohort")
        return sorted(rng.choice(self.num_clients, self.cohort_size, replace=False).tolist())

    def steps_per_epoch(self, client: int) -> int:
        return -(-self.num_train(client) // (self.batch_size or self.num_train(client)))

    def num_train(self, client: int) -> int:
        """Training samples of a client, n_k."""
        return self._train_start[client + 1] - self._train_start[client]

    def batches(self, client: int, round: int, steps: int, full: bool = False) -> Iterator[Batch]:
        """A client's next ``steps`` batches: epoch after epoch in random order, the short batch at an epoch's end kept.

        Args:
            full: fill short batches up with samples that do not count, so that all have one shape.
        """
        for inputs, targets, real in self.stacked_batches([client], round, [steps], full):
            yield Batch(inputs[0], targets[0], None if real is None else real[0])

    def stacked_batches(self, clients: Sequence[int], round: int, steps: Sequence[int], full: bool = False) -> Iterator[Batch]:
        """The batches of several clients side by side, the same as each alone would get.

        Args:
            clients: who.
            steps: of each, in descending order.
            full: fill short batches up to ``batch_size``; else to the longest of the step.

        Yields:
            Inputs (M, B, ...), targets (M, B) and which of them count, for the M clients that have a step left.
        """
        starts = [self._train_start[client] for client in clients]
        sizes = [self.num_train(client) for client in clients]
        visits = Visits(self.seed, round, clients, starts, sizes, steps, self.batch_size, self.device)
        change_keys = visits.keys("augmentation") if self.augment else None
        for step in visits.plan(full):
            indices = self._train_indices[step.indices]
            inputs = self.train_set.inputs[indices.reshape(-1)]
            if change_keys is not None:
                inputs = self._augmented(inputs, change_keys[: len(indices)], step.draw_counters)
            inputs = self.normalise(inputs)
            yield Batch(inputs.reshape(*indices.shape, *inputs.shape[1:]), self.train_set.targets[indices], step.real)

    def _augmented(self, images: Tensor, keys: Tensor, counters: Tensor) -> Tensor:
        total = sum(augmentation.num_draws for augmentation in self.augment)
        draws = random_bits(keys[:, None, None], counters[..., None] * total + torch.arange(total, device=self.device))
        draws = draws.reshape(len(images), total).split([augmentation.num_draws for augmentation in self.augment], dim=1)
        for augmentation, own in zip(self.augment, draws, strict=True):
            images = augmentation(images, own)
        return images

    def normalise(self, inputs: Tensor) -> Tensor:
        """Stored samples as the net takes them: in the net's dtype, images in units of ``std`` about ``mean``."""
        inputs = inputs.to(self.dtype)
        return inputs if self._scale is None else torch.addcmul(self._add, inputs, self._multiply)

    def validation_samples(self, clients: Sequence[int]) -> tuple[Samples, Tensor]:
        """Validation parts of some clients, joined, and for each sample the position of its owner in ``clients``."""
        indices = [self.shards.validation_indices(client) for client in clients]
        owner = torch.repeat_interleave(torch.arange(len(clients)), torch.tensor([len(part) for part in indices]))
        joined = torch.cat(indices).to(self.device)
        return Samples(self.train_set.inputs[joined], self.train_set.targets[joined]), owner.to(self.device)

    def test_inputs(self) -> Tensor:
        """All test inputs as the net takes them."""
        return self.normalise(self.test_set.inputs)

    def train_dataloader(self) -> Rounds:
        return Rounds(first=(self.trainer.global_step if self.trainer else 0) + 1)

    @property
    def evaluation_names(self) -> tuple[str, ...]:
        """What ``val_dataloader`` serves, in order: ``val`` and ``test``, each where there are such samples."""
        return tuple(name for name, there in (("val", self.has_validation), ("test", self.has_test)) if there)

    def val_dataloader(self) -> list[EvaluationBatches]:
        """The clients' joined validation parts, and the test set, which is served every ``monitor_test`` rounds of a fit."""
        loaders = {"val": lambda: self._evaluation("val"), "test": lambda: self._evaluation("test", self.test_is_due)}
        return [loaders[name]() for name in self.evaluation_names]

    def test_is_due(self) -> bool:
        """Whether the test set is evaluated at the present round of a fit."""
        if self.trainer is None or self.trainer.state.fn != "fit" or not self.monitors_test:
            return False
        round = self.trainer.global_step
        return round % self.monitor_test == 0 or round == self.trainer.max_steps

    @property
    def monitors_test(self) -> bool:
        """Whether a fit may look at the test set at all."""
        return self.has_test and self.monitor_test > 0

    def test_dataloader(self) -> EvaluationBatches:
        """The global test set.

        Raises:
            ValueError: if the source has none.
        """
        if not self.has_test:
            raise ValueError("data.source has no test set: give Arrays test_inputs and test_targets")
        return self._evaluation("test")

    predict_dataloader = test_dataloader

    def _evaluation(self, name: str, due: Callable[[], bool] = lambda: True) -> EvaluationBatches:
        indices = self.shards.validation if name == "val" else torch.arange(len(self.test_set))
        ranks = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        return EvaluationBatches(lambda part: self._evaluation_batch(name, part), indices, self.eval_batch_size, due, *ranks)

    def _evaluation_batch(self, name: str, indices: Tensor) -> Batch:
        samples, indices = self.train_set if name == "val" else self.test_set, indices.to(self.device)
        return Batch(self.normalise(samples.inputs[indices]), samples.targets[indices])


def from_arrays(inputs: Tensor, targets: Tensor, clients: Sequence[Sequence[int]], **settings: object) -> FederatedDataModule:
    """A data module from tensors and index lists, in one line.

    ``from_arrays(x, y, clients=[[0, 1], [2, 3, 4]], cohorts=[[0], [0, 1]], batch_size=None)`` trains client 0 in round 1 and
    both in round 2, on full batches, validating on nothing.

    Args:
        inputs: (n, ...) training inputs.
        targets: (n,) class indices.
        clients: each client's sample indices.
        settings: ``test_inputs``, ``test_targets`` and ``classes`` of :class:`Arrays`, and anything that
            :class:`FederatedDataModule` takes. Defaults here: ``val_fraction=0``, every client in every round.
    """
    source = Arrays(
        inputs, targets, **{name: settings.pop(name) for name in ("test_inputs", "test_targets", "classes") if name in settings}
    )
    defaults = {"num_clients": len(clients), "clients_per_round": len(clients), "val_fraction": 0.0}
    return FederatedDataModule(source, partition=Fixed(clients), **{**defaults, **settings})


def _cohort_size(clients_per_round: int | float, num_clients: int) -> int:
    if isinstance(clients_per_round, float):
        if not 0 < clients_per_round <= 1:
            raise ValueError(
                f"data.clients_per_round is {clients_per_round}, must be above 0 and at most 1 as a fraction: "
                "write a whole number for a count"
            )
        return max(int(clients_per_round * num_clients + 1e-9), 1)
    if not 1 <= clients_per_round <= num_clients:
        raise ValueError(
            f"data.clients_per_round is {clients_per_round}, must be between 1 and data.num_clients, {num_clients}"
        )
    return clients_per_round


def _scale(inputs: Tensor, mean: Sequence[float] | None, std: Sequence[float] | None) -> tuple[Tensor, Tensor] | None:
    """Factor and summand, one a channel, that take stored inputs to normalised ones; None leaves inputs as they are."""
    is_image = inputs.dtype == torch.uint8
    if mean is None and not is_image:
        return None
    mean_, std_ = (torch.tensor(mean), torch.tensor(std)) if mean is not None else _channel_statistics(inputs)
    channels = inputs.shape[1]
    if len(mean_) not in (1, channels):
        raise ValueError(f"data.mean has {len(mean_)} values, the data {channels} channels: give one a channel")
    unit = 255.0 if is_image else 1.0
    shape = (1, -1, *[1] * (inputs.ndim - 2))
    return (1 / (std_.double() * unit)).reshape(shape), (-mean_.double() / std_.double()).reshape(shape)


def _channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel of uint8 images, scaled to [0, 1]; the deviation of a constant channel counts as 1."""
    sums = [
        torch.stack([x.sum((0, 2, 3)), (x * x).sum((0, 2, 3))]) for x in (part.double() / 255 for part in images.split(4096))
    ]
    count = images.numel() // images.shape[1]
    mean, square = sum(sums[1:], sums[0]) / count
    std = (square - mean * mean).clamp_min(0).sqrt()
    return mean, torch.where(std > 1e-6, std, torch.ones_like(std))
