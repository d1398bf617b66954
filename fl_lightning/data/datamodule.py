"""The data of a federation: FederatedDataModule connects the parts in this folder."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor

from fl_lightning.checks import check_choice, check_range, check_whole
from fl_lightning.data.augment import Augmentation
from fl_lightning.data.client_batches import ShardBatches
from fl_lightning.data.client_sampler import ClientSampler
from fl_lightning.data.client_test_sets import client_test_sets
from fl_lightning.data.evaluation_data import EvaluationData
from fl_lightning.data.federated_split import FederatedSplit
from fl_lightning.data.loaders import EvaluationBatches
from fl_lightning.data.participation import participation
from fl_lightning.data.partitions import Dirichlet, Natural, Partition
from fl_lightning.data.prepared_samples import Preparation, PreparedSamples, PublicData
from fl_lightning.data.present_shards import BatchSizes, PresentShards
from fl_lightning.data.samples import Dataset
from fl_lightning.data.scaling import check_statistics
from fl_lightning.data.sources.by_name import open_source
from fl_lightning.data.sources.source import Source
from fl_lightning.data.storage import Storage, StoredSamples
from fl_lightning.data.tasks import ClassStreams, Streams, Tasks
from fl_lightning.objectives import Objective, SingleLabel
from fl_lightning.protocol import EvaluationName, NetInputs
from fl_lightning.protocol.devices import Devices


class FederatedDataModule(LightningDataModule):
    """Partitions a dataset among clients and serves them their batches from the device.

    Images, which are uint8 inputs, stay uint8 on the device; batches are gathered, augmented, scaled to [0, 1] and normalised
    there. Float inputs are used as they are, in the net's precision, unless ``mean`` and ``std`` are given. Other whole
    numbers, such as token ids, reach the net as they are, in every precision.

    Each argument is a key of the command line, ``data.<name>``, hence their number; :meth:`setup` passes it to the object that
    uses it. Hooks and engines use the interface :class:`~fl_lightning.protocol.Federation` of this class.

    Args:
        source: a :class:`Source`, or ``digits``, ``image_folder``, ``leaf``, the name of a torchvision classification set, or a
            ``.npz`` file.
        root: folder of the dataset; torchvision sets are downloaded into it.
        num_clients: clients in the federation, N.
        clients_per_round: size of a cohort; a whole number is a count, a number with a point is a fraction of the clients
            (``0.1``; ``1.0`` is all of them), of which at least one takes part. With ``Poisson`` it is the size on average.
        batch_size: samples of a local step; the last batch of an epoch may be smaller. None: a client's shard is one batch.
        partition: the rule that deals the training samples to clients.
        public_size: number of training samples that only the server has, drawn at random by the seed; the clients have the
            others. For methods that distil at the server.
        val_fraction: share of each client's samples for validation, in [0, 1); 0 for none.
        test_fraction: share of each client's samples for the test of its personal model, in [0, 1); both together below 1. With
            0, personal models are tested on parts of the global test set, dealt so that each part has the class shares of its
            client's training samples; models of natural clients on the clients' own test samples in the source.
        monitor_test: rounds of a fit between evaluations of the global test set, which also follows the last round, but not
            where ``EarlyStopping`` ends the fit, and is never used to choose a model; 0 for never. Only in rounds that are
            validated (``trainer.val_check_interval``).
        augment: changes to images before they are normalised, in order; in evaluation without randomness.
        mean: mean per channel, in [0, 1] for images; by default measured on the training set.
        std: deviation per channel, in the same way.
        client_sampler: the rule that draws the clients of a round, a :class:`ClientSampler`; None: ``Uniform``.
        devices: speeds of the clients, deadline and lost uploads, :class:`fl_lightning.data.Devices`; None: all uploads arrive.
        cohorts: the clients of round 1, 2, ..., instead of ``clients_per_round`` and a sampler.
        eval_batch_size: samples of an evaluation step.
        storage: where inputs are stored: on the ``device``, or ``stream``, where the source has them, on disk or in memory,
            from which threads read them ahead. ``auto`` streams inputs that take more than half of the device's free memory.
            The results are the same.
        num_workers: threads that read ahead; 0 for none.
        tasks: the rule that turns the classes of the source into a sequence of tasks (:mod:`fl_lightning.tasks`): a
            ``TaskStream`` for each client, instead of ``partition``, ``public_size``, ``val_fraction`` and ``test_fraction``;
            or a ``ClassStream`` for the global model, instead of ``public_size`` and ``test_fraction``.
        seed: seed of partition, splits, cohorts and batches; ``seed_everything`` on the command line.

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
        test_fraction: float = 0.0,
        monitor_test: int = 10,
        augment: Sequence[Augmentation] = (),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        client_sampler: ClientSampler | None = None,
        devices: Devices | None = None,
        cohorts: Sequence[Sequence[int]] | None = None,
        eval_batch_size: int = 500,
        storage: Storage = "auto",
        num_workers: int = 2,
        tasks: Tasks | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.source, self.root, self.partition, self.seed = open_source(source), Path(root), partition, seed
        self.num_clients, self.batch_size = num_clients, batch_size
        self.val_fraction, self.test_fraction = val_fraction, test_fraction
        self.monitor_test, self.augment, self.mean, self.std = monitor_test, tuple(augment), mean, std
        self.eval_batch_size = eval_batch_size
        self.storage: Storage = storage
        self.num_workers, self.public_size, self.tasks = num_workers, public_size, tasks
        _check_settings(self)
        self.participation = participation(client_sampler, cohorts, clients_per_round, num_clients, seed, devices)
        self.cohorts = None if cohorts is None else [[int(client) for client in cohort] for cohort in cohorts]
        self.devices = devices
        self.cohort_size = self.participation.size
        self.client_sampler = self.participation.sampler if cohorts is None else None
        self.split = FederatedSplit(partition, num_clients, public_size, seed)
        self._validates = True  # in this process
        self.objective: Objective = SingleLabel()  # that of the source, once it is read
        self._streams: Streams | ClassStreams | None = None
        self._samples: PreparedSamples | None = None
        self._placed_for: tuple[torch.device, torch.dtype] | None = None  # the net for which samples are placed

    def __str__(self) -> str:
        """One line: source and clients and, after ``setup``, classes and samples."""
        settings = f"{type(self.source).__name__}, {self.num_clients} clients"
        if self._samples is None:
            return f"{settings}, not loaded yet"
        samples = {"training": self.shards.train, "validation": self.shards.validation, "test": self.test_set}
        counts = ", ".join(f"{len(part):,} {name}" for name, part in samples.items())
        return f"{settings}, {len(self.classes)} classes, samples: {counts}"

    def setup(self, stage: str | None = None) -> None:
        """Read the source and give each client its samples; a second call does nothing.

        Raises:
            FileNotFoundError: if the dataset does not exist and cannot be downloaded.
            ValueError: if it cannot be read, or leaves a client without samples.
        """
        if self._samples is not None:
            return
        dataset = self.source.load(self.root)
        if not isinstance(dataset, Dataset):
            kind = type(self.source).__name__
            raise ValueError(f"data.source {kind} loads {type(dataset).__name__}, must load a fl_lightning.data.Dataset")
        self.objective = dataset.objective
        if self.tasks is not None:
            if not dataset.objective.tells_classes:
                raise ValueError(
                    f"data.tasks is {self.tasks!r}, which deals classes, but data.source has {dataset.objective!r}: leave "
                    "data.tasks out"
                )
            self._streams = self.tasks.stream(dataset, self.split, self.val_fraction)
            dataset, self.shards, self._public = self._streams.dataset, self._streams.shards, torch.empty(0, dtype=torch.int64)
        else:
            private, self._public = self.split.private_and_public(dataset)
            self.shards = self.split.shards(dataset, private, self.val_fraction, self.test_fraction)
        self.preparation = Preparation(dataset.train, self.augment, self.mean, self.std)
        self._samples = PreparedSamples(dataset, self.preparation, self.storage, self.num_workers)
        self.present_shards = PresentShards(self.shards, 1 if self._streams is None else self._streams.num_tasks)
        self.batch_sizes = BatchSizes(self.present_shards, self.batch_size, self.eval_batch_size)
        tests = None
        if self.tasks is None:
            natural = isinstance(self.split.partition, Natural)
            tests = client_test_sets(dataset, self.shards, self.test_fraction > 0, natural, self.seed)
        arriving = self._streams if isinstance(self._streams, ClassStreams) else None
        self.evaluation = EvaluationData(
            self._samples, self.present_shards, self.has_validation and self._validates, self.monitor_test, tests, arriving
        )
        self.to(torch.device("cpu"), torch.get_default_dtype())

    def validate_here(self, here: bool) -> None:
        """Whether clients' validation parts are evaluated in this process, and not at their sites."""
        self._validates = here
        if self._samples is not None:
            self.evaluation = replace(self.evaluation, has_validation=self.has_validation and here)

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Keep the samples on ``device`` and serve them as ``dtype``; costs nothing if this is already so."""
        if (device, dtype) == self._placed_for:
            return
        trains_here = self.trainer is None or device == self.trainer.strategy.root_device
        self.samples.to(device, dtype, announce=trains_here)
        self.present_shards.to(device, self.samples.train.streamed)
        self._placed_for = device, dtype

    @property
    def samples(self) -> PreparedSamples:
        """All samples, on the net's device.

        Raises:
            RuntimeError: before ``setup``.
        """
        if self._samples is None:
            raise RuntimeError("the data is not loaded yet: call setup() first")
        return self._samples

    @property
    def public(self) -> PublicData:
        """The server's samples, as many as ``public_size``."""
        return PublicData(self.samples, self._public)

    @property
    def train_set(self) -> StoredSamples:
        """Training samples as stored."""
        return self.samples.train

    @property
    def test_set(self) -> StoredSamples:
        """Test samples as stored."""
        return self.samples.test

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in label order."""
        return self.samples.dataset.classes

    @property
    def input_shape(self) -> Any:
        """Shape of one sample as the net takes it: (channels, height, width) for images; a dict or tuple of shapes if a net
        takes several tensors."""
        return self.samples.preparation.input_shape

    def first_inputs(self, count: int) -> NetInputs:
        """A few training inputs as the net takes them in evaluation."""
        return self.samples.first_inputs(count)

    # Clients --------------------------------------------------------------------------------------------------------

    def cohort(self, round: int) -> list[int]:
        """The clients of a round (counted from 1), ascending; a function of only the seed and the round."""
        return self.participation.cohort(round)

    @property
    def label_counts(self) -> Tensor:
        """(N, C) classes of each client's training and validation samples, of its present task where it learns tasks."""
        return self.present_shards.label_counts

    @property
    def train_label_counts(self) -> Tensor:
        """(N, C) classes of each client's training samples."""
        return self.present_shards.train_label_counts

    def num_train(self, client: int) -> int:
        """Training samples of a client, n_k."""
        return self.present_shards.num_train(client)

    def steps_per_epoch(self, client: int) -> int:
        """Batches of one pass over a client's training samples."""
        return self.batch_sizes.steps_per_epoch(client)

    def client_batches(
        self, sample_indices: bool = False, poisson: bool = False, batch_size: int | None = None
    ) -> ShardBatches:
        """The object that serves clients their batches.

        Args:
            sample_indices: whether batches contain the indices of their samples.
            poisson: whether every sample is in a batch by an independent draw.
            batch_size: samples of a local step; None: ``data.batch_size``.
        """
        sizes = self.batch_sizes if batch_size is None else replace(self.batch_sizes, local_step=batch_size)
        return ShardBatches(self.samples, self.present_shards, sizes, self.seed, sample_indices, poisson)

    @property
    def streams(self) -> Streams:
        """The tasks of each client, in its order.

        Raises:
            ValueError: if ``data.tasks`` is not a ``TaskStream``.
        """
        if not isinstance(self._streams, Streams):
            raise ValueError(
                f"data.tasks is {self.tasks or 'null'}, so no client has a sequence of tasks: give it a TaskStream"
            )
        return self._streams

    @property
    def class_streams(self) -> ClassStreams:
        """The classes of each task.

        Raises:
            ValueError: if ``data.tasks`` is neither a ``ClassStream`` nor a ``DomainStream``.
        """
        if not isinstance(self._streams, ClassStreams):
            raise ValueError(f"data.tasks is {self.tasks or 'null'}, so that no classes arrive: give it a ClassStream")
        return self._streams

    # Evaluation -----------------------------------------------------------------------------------------------------

    @property
    def has_validation(self) -> bool:
        """Whether the global model has clients' validation parts; it has none if each client learns tasks."""
        return self.val_fraction > 0 and (self.tasks is None or self.tasks.global_model)

    def train_dataloader(self) -> Iterator[int]:
        """The numbers of the next rounds, without end; as a plain iterator, it gets no distributed sampler from Lightning."""
        return count((self.trainer.global_step if self.trainer else 0) + 1)

    def val_dataloader(self) -> list[EvaluationBatches]:
        """The clients' joined validation parts, and the test set, which is served every ``monitor_test`` rounds of a fit."""
        due = {"val": lambda: True, "test": partial(test_is_due, self)}
        return [_loader(self, name, due[name]) for name in self.evaluation.names]

    def test_dataloader(self) -> EvaluationBatches:
        """The global test set.

        Raises:
            ValueError: if the source has none.
        """
        if self.tasks is not None and not self.tasks.global_model:
            raise ValueError(
                "data.tasks has test samples only for the clients' models: a fit logs how they do, as tasks/accuracy"
            )
        if "test" not in self.evaluation.names:
            raise ValueError("data.source has no test set: give Arrays test_inputs and test_targets")
        return _loader(self, "test", lambda: True)

    predict_dataloader = test_dataloader


def _check_settings(data: FederatedDataModule) -> None:
    if not isinstance(data.partition, Partition):
        given = data.partition if isinstance(data.partition, str) else getattr(data.partition, "__name__", data.partition)
        raise TypeError(f"data.partition is {given!r}, must be an object of fl_lightning.data: give one, such as IID()")
    check_whole("data.seed", data.seed)
    check_whole("data.num_clients", data.num_clients, at_least=1)
    if data.batch_size is not None:
        check_whole("data.batch_size", data.batch_size, at_least=1, hint="null is all samples of a client")
    check_whole("data.eval_batch_size", data.eval_batch_size, at_least=1)
    check_range("data.val_fraction", data.val_fraction, at_least=0, below=1, hint="the papers use 0.1")
    check_range("data.test_fraction", data.test_fraction, at_least=0, below=1, hint="0 holds out nothing")
    if data.val_fraction + data.test_fraction >= 1:
        raise ValueError(
            f"data.val_fraction is {data.val_fraction} and data.test_fraction is {data.test_fraction}, must be below 1 "
            "together: the rest is trained on"
        )
    if data.test_fraction > 0 and data.tasks is not None:
        tested = "holds test samples out of each task: set data.tasks.test_fraction"
        if data.tasks.global_model:
            tested = "has its model tested on the test samples of data.source: set it to 0"
        raise ValueError(f"data.test_fraction is {data.test_fraction}, but data.tasks {tested}")
    check_whole("data.public_size", data.public_size, at_least=0, hint="0 leaves the server without samples")
    if data.public_size > 0 and data.tasks is not None:
        raise ValueError(f"data.public_size is {data.public_size}, but data.tasks gives all samples to clients: set it to 0")
    check_choice("data.storage", data.storage, Storage)
    check_whole("data.num_workers", data.num_workers, at_least=0, hint="0 reads in the training process")
    check_whole("data.monitor_test", data.monitor_test, at_least=0, hint="0 changes no test sample")
    check_statistics(data.mean, data.std)


def test_is_due(data: FederatedDataModule) -> bool:
    """Whether the test set is evaluated at the present round of a fit."""
    trainer, every = data.trainer, data.evaluation.monitor_test
    if trainer is None or trainer.state.fn != "fit" or every == 0 or "test" not in data.evaluation.names:
        return False
    return trainer.global_step % every == 0 or trainer.should_stop or trainer.global_step == trainer.max_steps


def _loader(data: FederatedDataModule, name: EvaluationName, due: Callable[[], bool]) -> EvaluationBatches:
    ranks = (data.trainer.global_rank, data.trainer.world_size) if data.trainer else (0, 1)
    return data.evaluation.loader(name, data.eval_batch_size, due, *ranks)
