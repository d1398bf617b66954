"""The data of a federation: who holds what, who takes part in which round, and what one client's step sees."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import tee
from pathlib import Path
from typing import Literal

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor

from fl_lightning.data.augment import Augmentation
from fl_lightning.data.batches import Step, Visits
from fl_lightning.data.client_sampler import ClientSampler, FixedSampler, UniformSampler
from fl_lightning.data.loaders import EvaluationBatches, EvaluationInputs, Rounds
from fl_lightning.data.partitions import Dirichlet, Partition
from fl_lightning.data.samples import Dataset, are_whole, type_name
from fl_lightning.data.scaling import InputRecord, channel_statistics, normalise
from fl_lightning.data.shards import split_clients
from fl_lightning.data.sources import Source, open_source
from fl_lightning.data.storage import Storage, place
from fl_lightning.data.tasks import Streams, TaskStream
from fl_lightning.exchange import Batch
from fl_lightning.random_streams import numpy_stream, random_bits, stream_seed


class FederatedDataModule(LightningDataModule):
    """Shares a data set out among clients and serves them their batches from the device.

    Images, which uint8 inputs are, stay uint8 on the device; batches are gathered, augmented, scaled to [0, 1] and normalised
    there. Float inputs are used as they are, in the net's precision, unless ``mean`` and ``std`` are given. Other whole
    numbers, such as token ids, reach the net as they are, in every precision.

    Args:
        source: a :class:`Source`, or ``digits``, ``image_folder``, ``leaf``, the name of a torchvision classification set, or a
            ``.npz`` file.
        root: folder of the data set; torchvision sets are downloaded into it.
        num_clients: clients in the federation, N.
        clients_per_round: size of a cohort; a whole number is a count, a number with a point is a fraction of the clients
            (``0.1``; ``1.0`` is all of them), of which at least one takes part.
        batch_size: samples of a local step; the last batch of an epoch may be smaller. None: a client's shard is one batch.
        partition: how the training set is shared out.
        public_size: training samples that the server has and no client, drawn at random by the seed; what is left is shared
            out. For methods that distil at the server.
        val_fraction: part of each client's samples that it validates on, in [0, 1); 0 for none.
        monitor_test: evaluate the global test set every so many rounds of a fit and after the last, never used to choose a
            model; 0 for never. Only in rounds that are validated (``trainer.val_check_interval``).
        augment: changes to images before they are normalised, in order; in evaluation without chance.
        mean: per channel, in [0, 1] for images; by default measured on the training set.
        std: likewise.
        cohorts: the clients of round 1, 2, ..., instead of drawing ``clients_per_round`` at random without replacement.
        eval_batch_size: samples of an evaluation step.
        storage: where the images lie: on the ``device``, or ``stream``, on disk, from where workers read them ahead. ``auto``
            streams what takes more than half of the device's free memory. The results are the same.
        num_workers: processes that read ahead; 0 for none.
        tasks: what makes the classes of the source a sequence of tasks for each client (:mod:`fl_lightning.continual`), in the
            place of ``partition``, ``public_size`` and ``val_fraction``.
        seed: of partition, splits, cohorts and batches; ``seed_everything`` on the command line.

    Raises:
        ValueError: if a value is out of range, before any data is read.
    """

    def __init__(
        self,
        source: Source | str = "digits",
        root: str = "data",
        num_clients: int = 100,
        clients_per_round: int | float = 10,
        batch_size: int | None = 64,
        partition: Partition = Dirichlet(alpha=0.1),
        public_size: int = 0,
        val_fraction: float = 0.1,
        monitor_test: int = 10,
        augment: Sequence[Augmentation] = (),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        cohorts: Sequence[Sequence[int]] | None = None,
        eval_batch_size: int = 500,
        storage: Storage = "auto",
        num_workers: int = 2,
        tasks: TaskStream | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.source, self.root, self.partition, self.seed = open_source(source), Path(root), partition, seed
        self.num_clients, self.batch_size, self.val_fraction = num_clients, batch_size, val_fraction
        self.monitor_test, self.augment, self.mean, self.std = monitor_test, tuple(augment), mean, std
        self.cohorts, self.eval_batch_size = cohorts, eval_batch_size
        self.storage, self.num_workers, self.public_size, self.tasks = storage, num_workers, public_size, tasks
        self._check_settings()
        self.cohort_size = _cohort_size(clients_per_round, num_clients) if cohorts is None else None
        self.client_sampler = self._client_sampler()
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
        if self.public_size < 0:
            raise ValueError(f"data.public_size is {self.public_size}, must be at least 0: 0 leaves the server without samples")
        if self.storage not in ("auto", "device", "stream"):
            raise ValueError(f"data.storage is {self.storage!r}, must be one of auto, device, stream")
        if self.num_workers < 0:
            raise ValueError(f"data.num_workers is {self.num_workers}, must be at least 0: 0 reads in the training process")
        if self.monitor_test < 0:
            raise ValueError(f"data.monitor_test is {self.monitor_test}, must be at least 0: 0 leaves the test set alone")
        if (self.mean is None) != (self.std is None):
            raise ValueError(f"data.mean is {self.mean} and data.std is {self.std}: give both or neither")
        if self.mean is not None and self.std is not None and not len(self.mean) == len(self.std) >= 1:
            raise ValueError(
                f"data.mean is {list(self.mean)} and data.std is {list(self.std)}, must have one value a channel each"
            )
        if self.mean is not None and not all(map(math.isfinite, self.mean)):
            raise ValueError(f"data.mean is {list(self.mean)}, must be finite in every channel")
        if self.std is not None and not all(0 < deviation < math.inf for deviation in self.std):
            raise ValueError(f"data.std is {list(self.std)}, must be above 0 in every channel")
        for cohort in self.cohorts or ():
            if not cohort or len(set(cohort)) != len(cohort) or not all(0 <= client < self.num_clients for client in cohort):
                raise ValueError(
                    f"data.cohorts has the cohort {list(cohort)}, must name clients between 0 and {self.num_clients - 1}, "
                    "each once and at least one"
                )

    def __str__(self) -> str:
        """One line: source and clients and, after ``setup``, classes and samples."""
        settings = f"{type(self.source).__name__}, {self.num_clients} clients"
        if self._dataset is None:
            return f"{settings}, not loaded yet"
        samples = {"training": self.shards.train, "validation": self.shards.validation, "test": self._dataset.test}
        counts = ", ".join(f"{len(part):,} {name}" for name, part in samples.items())
        return f"{settings}, {len(self.classes)} classes, samples: {counts}"

    def setup(self, stage: str | None = None) -> None:
        """Read the source and share it out; a second call does nothing.

        Raises:
            FileNotFoundError: if the data set is not there and cannot be fetched.
            ValueError: if it cannot be read, or leaves a client without samples.
        """
        if self._dataset is not None:
            return
        dataset = self.source.load(self.root)
        if self.augment and dataset.train.inputs.ndim != 4:
            shape = tuple(dataset.train.inputs.shape[1:])
            raise ValueError(f"data.augment is for images, but data.source gives samples of shape {shape}: leave it out")
        if self.mean is not None and are_whole(dataset.train.inputs):
            raise ValueError(
                f"data.mean is {list(self.mean)}, but data.source gives whole numbers that are no images: leave "
                "data.mean and data.std out, or give floats"
            )
        self.streams: Streams | None = None
        if self.tasks is not None:
            self.streams = self.tasks.share_out(dataset, self.num_clients, self.seed)
            dataset, self.shards = self.streams.dataset, self.streams.shards
        else:
            private, self._public = self.set_public_aside(dataset)
            parts = [private[part] for part in self.share_out(dataset, private)]
            rng = numpy_stream(self.seed, -1, -1, "validation split")
            self.shards = split_clients(parts, dataset.train.targets, len(dataset.classes), self.val_fraction, rng)
        self._train_start: list[int] = self.shards.train_start.tolist()
        self._rows = [client * self.num_tasks for client in range(self.num_clients)]  # of the shards, at the first task
        self._statistics = channel_statistics(dataset.train.inputs, self._unchanged, self.mean, self.std)
        self._dataset = dataset
        self.to(torch.device("cpu"), torch.get_default_dtype())

    def set_public_aside(self, dataset: Dataset) -> tuple[Tensor, Tensor]:
        """Indices of the training samples for the clients, ascending, and of those for the server."""
        count = len(dataset.train)
        if 0 < count <= self.public_size:
            raise ValueError(f"data.public_size is {self.public_size}, must be below the number of training samples, {count}")
        order = torch.from_numpy(numpy_stream(self.seed, -1, -1, "public samples").permutation(count))
        return order[self.public_size :].sort().values, order[: self.public_size]

    def share_out(self, dataset: Dataset, private: Tensor) -> list[Tensor]:
        """Each client's places in ``private``, the indices of the training samples that are for the clients."""
        labels, owners = dataset.train.targets[private], None if dataset.owners is None else dataset.owners[private]
        return self.partition.share_out(labels, owners, self.num_clients, stream_seed(self.seed, -1, -1, "partition"))

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Keep the samples on ``device`` and hand them out as ``dtype``; costs nothing where that is so already."""
        if (device, dtype) == (self.device, self.dtype):
            return
        self.device, self.dtype = device, dtype
        trains_here = self.trainer is None or device == self.trainer.strategy.root_device
        self.train_set, self.test_set = place(self._loaded, device, self.storage, self.num_workers, announce=trains_here)
        # Indices that are streamed are wanted where the workers are.
        self._train_indices = self.shards.train if self.train_set.streamed else self.shards.train.to(device)
        self._count_labels()
        self._scale = None
        if self._statistics is not None:
            multiply, add = self._statistics.scale(self._loaded.train.inputs)
            self._scale = (multiply.to(device, dtype), add.to(device, dtype))

    def _count_labels(self) -> None:
        """(N, C) classes of each client's samples, of its present task where it learns tasks."""
        self.label_counts = self.shards.label_counts[self._rows].to(self.device)
        self.train_label_counts = self.shards.train_label_counts[self._rows].to(self.device)

    @property
    def num_tasks(self) -> int:
        """T, tasks of each client; 1 where samples are shared out once for all rounds."""
        return 1 if self.streams is None else self.streams.num_tasks

    def go_to(self, positions: Sequence[int]) -> None:
        """From here on each client's training samples are those of its task at that position; T: of its last."""
        last = self.num_tasks - 1
        self._rows = [client * self.num_tasks + min(position, last) for client, position in enumerate(positions)]
        self._count_labels()

    def task_samples(self, client: int, position: int, part: Literal["validation", "test"]) -> tuple[EvaluationInputs, Tensor]:
        """A client's validation or test samples of a task, and their targets.

        Args:
            position: of the task in the client's sequence, from 0.
        """
        row = client * self.num_tasks + position
        indices = self.streams.test[row] if part == "test" else self.shards.validation_indices(row)
        return self._evaluation_inputs("train", indices), self.train_set.targets[indices.to(self.device)]

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in label order."""
        return self._loaded.classes

    @cached_property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as the net takes it: (channels, height, width) for images."""
        return tuple(self._unchanged(self._loaded.train.inputs[:1]).shape[1:])

    @property
    def input_record(self) -> InputRecord:
        """What a trained net needs to be used elsewhere: the samples as stored, their statistics and the classes."""
        stored = self._loaded.train.inputs
        mean, std = (None, None) if self._statistics is None else (part.tolist() for part in self._statistics)
        return InputRecord(list(stored.shape[1:]), list(self.input_shape), type_name(stored), mean, std, list(self.classes))

    @property
    def inputs_are_whole(self) -> bool:
        """Whether the net is given whole numbers, such as token ids, of which there are no gradients."""
        return are_whole(self._loaded.train.inputs)

    @property
    def has_validation(self) -> bool:
        """Whether clients' validation parts are there for the global model, which they are not where clients learn tasks."""
        return self.val_fraction > 0 and self.tasks is None

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
        return self.client_sampler.cohort(round)

    def _client_sampler(self) -> ClientSampler:
        if self.cohorts is not None:
            return FixedSampler(self.cohorts)
        return UniformSampler(self.num_clients, self.cohort_size, self.seed)

    def steps_per_epoch(self, client: int) -> int:
        return -(-self.num_train(client) // (self.batch_size or self.num_train(client)))

    def num_train(self, client: int) -> int:
        """Training samples of a client, n_k."""
        row = self._rows[client]
        return self._train_start[row + 1] - self._train_start[row]

    def sampling_rate(self, client: int) -> float:
        """Share of a client's training samples in a batch, at most 1: the probability of each in a Poisson batch."""
        size = self.num_train(client)
        return min((self.batch_size or size) / size, 1.0)

    def smallest_batch(self, client: int, steps: int) -> int:
        """Samples of the smallest batch that a client's visit of so many steps has."""
        size = self.num_train(client)
        batch, reaches_last = min(self.batch_size or size, size), steps >= self.steps_per_epoch(client)
        return size % batch or batch if reaches_last else batch

    def client_batches(
        self, sample_indices: bool = False, poisson: bool = False, batch_size: int | None = None
    ) -> "ShardBatches":
        """What serves clients their batches.

        Args:
            sample_indices: whether batches say which samples they have.
            poisson: whether every sample is in a batch by a coin of its own.
            batch_size: samples of a local step; None: as many as ``data.batch_size`` says.
        """
        return ShardBatches(self, sample_indices, poisson, batch_size or self.batch_size)

    def visits(self, clients: Sequence[int], round: int, steps: Sequence[int], batch_size: int | None) -> Visits:
        """Which samples the steps of some clients see; ``steps`` of each, in descending order."""
        starts = [self._train_start[self._rows[client]] for client in clients]
        sizes = [self.num_train(client) for client in clients]
        return Visits(self.seed, round, clients, starts, sizes, steps, batch_size, self._train_indices.device)

    def read(self, visits: Visits, planned: Iterator[Step], changes: str, sample_indices: bool) -> Iterator[Batch]:
        """The batches of planned steps, augmented and normalised.

        Args:
            changes: names the draws of augmentation.
            sample_indices: whether batches say which samples they have.
        """
        start = torch.tensor(visits.starts, device=self._train_indices.device)[:, None] if sample_indices else None
        change_keys = visits.keys(changes).to(self.device) if self.augment else None
        planned, ahead = tee(planned)
        stored = self.train_set.read(self._train_indices[step.indices] for step in ahead)
        for step, (inputs, targets) in zip(planned, stored, strict=True):
            if change_keys is not None:
                inputs = self._augmented(inputs, change_keys[: len(targets)], step.draw_counters.to(self.device))
            inputs = self.normalise(inputs).reshape(*targets.shape, *self.input_shape)
            others = (step.real, step.indices - start[: len(targets)] if start is not None else None)
            yield Batch(inputs, targets, *(None if other is None else other.to(self.device) for other in others))

    def _augmented(self, images: Tensor, keys: Tensor, counters: Tensor) -> Tensor:
        total = sum(augmentation.num_draws for augmentation in self.augment)
        draws = random_bits(keys[:, None, None], counters[..., None] * total + torch.arange(total, device=self.device))
        draws = draws.reshape(len(images), total).split([augmentation.num_draws for augmentation in self.augment], dim=1)
        for augmentation, own in zip(self.augment, draws, strict=True):
            images = augmentation(images, own)
        return images

    def _unchanged(self, images: Tensor) -> Tensor:
        """Images as evaluation sees them: nothing random, in the shape of those for training."""
        for augmentation in self.augment:
            images = augmentation.evaluate(images)
        return images

    def normalise(self, inputs: Tensor) -> Tensor:
        """Stored samples as the net takes them: images in units of ``std`` about ``mean``; whole numbers as they are."""
        return normalise(inputs, self._scale, self.dtype)

    def client_samples(self, client: int) -> Iterator[Batch]:
        """A client's training samples, each once and nothing about them random, in batches of at most ``eval_batch_size``."""
        return self._evaluation_batches("train", self.shards.train_indices(self._rows[client]).split(self.eval_batch_size))

    def first_inputs(self, count: int) -> Tensor:
        """A few training inputs as the net takes them in evaluation."""
        first = self._loaded.train.inputs[:count].clone()  # not a view: whoever counts its memory means these alone
        return self.normalise(self._unchanged(first.to(self.device)))

    def validation_samples(self, clients: Sequence[int]) -> tuple[EvaluationInputs, Tensor, Tensor]:
        """Joined validation parts of some clients: inputs, targets (n,) and the place of each owner in ``clients``."""
        return self._joined_samples([self.shards.validation_indices(self._rows[client]) for client in clients])

    def training_samples(self, clients: Sequence[int]) -> tuple[EvaluationInputs, Tensor, Tensor]:
        """Likewise their joined training parts, each sample once and nothing about it random."""
        return self._joined_samples([self.shards.train_indices(self._rows[client]) for client in clients])

    def _joined_samples(self, parts: Sequence[Tensor]) -> tuple[EvaluationInputs, Tensor, Tensor]:
        owner = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor([len(part) for part in parts]))
        joined = torch.cat([*parts])
        return self._evaluation_inputs("train", joined), self.train_set.targets[joined.to(self.device)], owner.to(self.device)

    @property
    def public_targets(self) -> Tensor:
        """(``public_size``,) classes of the server's samples."""
        return self.train_set.targets[self._public.to(self.device)]

    def public_inputs(self) -> EvaluationInputs:
        """The server's samples."""
        return self._evaluation_inputs("train", self._public)

    def public_batches(self, places: Sequence[Tensor]) -> Iterator[Batch]:
        """Batches of the server's samples, given by their places among them."""
        return self._evaluation_batches("train", [self._public[part] for part in places])

    def test_inputs(self) -> EvaluationInputs:
        """All test inputs."""
        return self._evaluation_inputs("test", torch.arange(len(self.test_set)))

    def _evaluation_inputs(self, part: str, indices: Tensor) -> EvaluationInputs:
        return EvaluationInputs(partial(self._evaluation_batches, part), indices)

    def _evaluation_batches(self, part: str, batches: Sequence[Tensor]) -> Iterator[Batch]:
        samples = self.train_set if part == "train" else self.test_set
        for inputs, targets in samples.read(batches):
            yield Batch(self.normalise(self._unchanged(inputs)), targets)

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
        if self.tasks is not None:
            raise ValueError(
                "data.tasks has test samples for clients' own models alone: a fit logs how they do, as tasks/accuracy"
            )
        if not self.has_test:
            raise ValueError("data.source has no test set: give Arrays test_inputs and test_targets")
        return self._evaluation("test")

    predict_dataloader = test_dataloader

    def _evaluation(self, name: str, due: Callable[[], bool] = lambda: True) -> EvaluationBatches:
        part, indices = ("train", self.shards.validation) if name == "val" else ("test", torch.arange(len(self.test_set)))
        ranks = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        return EvaluationBatches(partial(self._evaluation_batches, part), indices, self.eval_batch_size, due, *ranks)


@dataclass(frozen=True)
class ShardBatches:
    """Serves clients their training samples.

    Args:
        data: whose clients these are.
        sample_indices: whether batches say which samples they have.
        poisson: whether every sample is in a batch by a coin of its own.
        batch_size: samples of a local step; None: a client's shard is one batch.
    """

    data: FederatedDataModule
    sample_indices: bool
    poisson: bool
    batch_size: int | None

    def expected_size(self, client: int) -> float | None:
        """Samples of a client's Poisson batch on average; None where batches have known sizes."""
        return self.data.sampling_rate(client) * self.data.num_train(client) if self.poisson else None

    def batches(self, client: int, round: int, steps: int, full: bool = False) -> Iterator[Batch]:
        """A client's next ``steps`` batches: epoch after epoch in random order, the short batch at an epoch's end kept.

        Args:
            full: fill short batches up with samples that do not count, so that all have one shape.
        """
        return map(_first, self.stacked_batches([client], round, [steps], full))

    def stacked_batches(
        self, clients: Sequence[int], round: int, steps: Sequence[int], full: bool = False
    ) -> Iterator[Batch]:
        """The batches of several clients side by side, the same as each alone would get.

        Args:
            clients: who.
            steps: of each, in descending order.
            full: fill short batches up to ``batch_size``; else to the longest of the step.

        Yields:
            Inputs (M, B, ...), targets (M, B) and which of them count, for the M clients that have a step left.
        """
        visits = self.data.visits(clients, round, steps, self.batch_size)
        planned = visits.poisson_plan() if self.poisson else visits.plan(full, "batch order")
        return self.data.read(visits, planned, "augmentation", self.sample_indices)

    def epoch(self, client: int, round: int, purpose: str) -> Iterator[Batch]:
        """One pass over a client's training samples in an order that the purpose names, all batches of one shape."""
        size = self.data.num_train(client)
        visits = self.data.visits([client], round, [-(-size // (self.batch_size or size))], self.batch_size)
        return map(_first, self.data.read(visits, visits.plan(True, purpose), f"augmentation, {purpose}", self.sample_indices))

    def client_samples(self, client: int) -> Iterator[Batch]:
        """A client's training samples, each once and nothing about them random, in batches of at most ``eval_batch_size``."""
        return self.data.client_samples(client)


def _first(stacked: Batch) -> Batch:
    return Batch(*(None if part is None else part[0] for part in stacked))


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
