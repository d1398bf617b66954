"""The data interface of hooks and engines; :class:`fl_lightning.FederatedDataModule` or a site implements it."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

from torch import Tensor

from fl_lightning.objectives import Objective
from fl_lightning.protocol.batch import Batch, NetInputs, PlannedStep
from fl_lightning.protocol.cohort import Inputs

EvaluationName = Literal["val", "test"]
"""What models are evaluated on: clients' validation parts or the test set."""


class LabelCounts(Protocol):
    """Class counts by client: a table (N, C), or at a site a dict with only its clients."""

    def __getitem__(self, client: Any, /) -> Tensor:
        """(C,), of a client's samples."""
        ...


class Site(Protocol):
    """The data interface of a visit: a site has only the samples of one client or more."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the C classes, in label order, the same at all sites."""
        ...

    @property
    def objective(self) -> Objective:
        """What the targets mean; a site that lacks this has one class for each sample."""
        ...

    @property
    def input_shape(self) -> Any:
        """Shape of one sample as the net takes it, (...); a dict or tuple of shapes if the net takes several tensors."""
        ...

    @property
    def label_counts(self) -> LabelCounts:
        """Class counts of each client's training and validation samples."""
        ...

    @property
    def train_label_counts(self) -> LabelCounts:
        """Class counts of each client's training samples."""
        ...

    @property
    def batch_size(self) -> int | None:
        """Samples of a local step; None: a client's shard is one batch."""
        ...

    @property
    def eval_batch_size(self) -> int:
        """Samples of an evaluation step."""
        ...

    @property
    def cohort_size(self) -> int:
        """Clients that a round draws, with those that over-selection adds."""
        ...

    def num_train(self, client: int) -> int:
        """Training samples of a client, n_k."""
        ...

    def steps_per_epoch(self, client: int) -> int:
        """Batches of one pass over a client's training samples."""
        ...

    def first_inputs(self, count: int) -> NetInputs:
        """A few training inputs as the net takes them in evaluation."""
        ...

    def client_batches(
        self, sample_indices: bool = False, poisson: bool = False, batch_size: int | None = None
    ) -> "ClientBatches":
        """The object that serves clients their samples.

        Args:
            sample_indices: whether batches contain the indices of their samples.
            poisson: whether every sample is in a batch by an independent draw, as accounting by sample requires.
            batch_size: samples of a local step; None: that of the federation.
        """
        ...


class Federation(Site, Protocol):
    """N clients, their samples, and the cohort of each round."""

    @property
    def num_clients(self) -> int:
        """N."""
        ...

    @property
    def public(self) -> "PublicSamples":
        """Samples that only the server has. A federation without any can lack this; methods that need them are refused."""
        ...

    def cohort(self, round: int) -> list[int]:
        """The clients of a round, counted from 1, ascending."""
        ...


class PublicSamples(Protocol):
    """Samples of the server, with their classes."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def inputs(self) -> Inputs:
        """All inputs, as the net takes them in evaluation."""
        ...

    def batches(self, positions: Sequence[Tensor]) -> Iterator[Batch]:
        """A batch for each tensor of positions among these samples."""
        ...


class ClientBatches(Protocol):
    """Serves clients their samples."""

    def expected_size(self, client: int) -> float | None:
        """Samples of a client's Poisson batch on average; None where batches have known sizes."""
        ...

    def batches(self, client: int, round: int, steps: int, full: bool = False) -> Iterator[Batch]:
        """A client's batches in a round; ``full``: short ones are padded with samples that do not count."""
        ...

    def stacked_batches(self, clients: Sequence[int], round: int, steps: Sequence[int]) -> Iterator[Batch]:
        """The batches of several clients side by side; ``steps`` of each, in descending order."""
        ...

    def planned(self, clients: Sequence[int], round: int, steps: Sequence[int], full: bool = False) -> list[list[PlannedStep]]:
        """The steps of ``batches`` of each of several clients, before samples are read."""
        ...

    def read(self, step: PlannedStep) -> Batch:
        """The batch of a planned step, found without access to the host: work that a GPU can record and replay."""
        ...

    def epoch(self, client: int, round: int, purpose: str) -> Iterator[Batch]:
        """One pass over a client's training samples in an order drawn for the purpose, all batches of one shape."""
        ...

    def client_samples(self, client: int) -> Iterator[Batch]:
        """A client's training samples, each once and without randomness."""
        ...
