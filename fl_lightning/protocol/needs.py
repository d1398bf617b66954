"""A method's requirements on the engine that runs it, and on the data."""

from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True)
class DataNeeds:
    """A method's requirements on the data beyond clients' samples.

    Args:
        task_streams: each client learns its own sequence of the tasks of ``data.tasks``.
        arriving_classes: the global model learns the tasks of ``data.tasks``, with classes that arrive one after another.
        public_samples: the server trains on public samples, those of ``data.public_size``.
        counts_of_cohort: a client's weight in the mean depends on the label counts of the whole cohort.
        classes: each sample has one class (:class:`fl_lightning.objectives.SingleLabel`).
    """

    task_streams: bool = False
    arriving_classes: bool = False
    public_samples: bool = False
    counts_of_cohort: bool = False
    classes: bool = False

    def __or__(self, other: Self) -> Self:
        """The needs of two methods that are combined into one."""
        return type(self)(*(getattr(self, need.name) | getattr(other, need.name) for need in fields(self)))


@dataclass(frozen=True)
class Needs:
    """A method's requirements, its attribute ``needs``. Engines read only these and the hooks that the method overrides.

    Args:
        client_weights: clients keep all their weights between visits; clients that do not receive continue from these.
        client_moments: clients keep their optimizer's state, such as Adam's moments, between visits.
        sample_indices: a local step uses the indices of its batch's samples, ``batch.sample_indices``.
        nonzeros_alone: only values that are not 0 are sent, up and down, and counted as bytes, without their positions.
        nothing_replaced: no tensor of the server replaces a client's; a client merges what it receives into its own.
        other_samples: a sample's ``client_loss`` depends on others, such as remembered samples or the rest of the batch.
        two_gradients: a local step takes two or more gradients on the client's samples.
        each_upload: the server uses each client's weights and buffers, not only their sums: it holds those of a whole cohort.
        initial_model: hooks use the initial weights and buffers, ``self.initial_model``.
        data: requirements on the data, which no engine reads.
    """

    client_weights: bool = False
    client_moments: bool = False
    sample_indices: bool = False
    nonzeros_alone: bool = False
    nothing_replaced: bool = False
    other_samples: bool = False
    two_gradients: bool = False
    each_upload: bool = False
    initial_model: bool = False
    data: DataNeeds = DataNeeds()

    def __or__(self, other: Self) -> Self:
        """The needs of two methods that are combined into one."""
        return type(self)(*(getattr(self, need.name) | getattr(other, need.name) for need in fields(self)))
