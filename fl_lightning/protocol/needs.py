"""What a method needs of the engine that runs it, and of the data."""

from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True)
class DataNeeds:
    """What a method needs of the data beyond clients' samples.

    Args:
        task_streams: each client learns its sequence of the tasks of ``data.tasks``.
        arriving_classes: the global model learns the tasks of ``data.tasks``, whose classes arrive one after another.
        public_samples: the server trains on public samples, those of ``data.public_size``.
    """

    task_streams: bool = False
    arriving_classes: bool = False
    public_samples: bool = False

    def __or__(self, other: Self) -> Self:
        """What two methods need that are combined into one."""
        return type(self)(*(getattr(self, need.name) | getattr(other, need.name) for need in fields(self)))


@dataclass(frozen=True)
class Needs:
    """Declared by a method as ``needs``; an engine knows nothing else about it.

    Args:
        client_weights: clients keep all their weights between visits, which those that do not receive go on from.
        client_moments: clients keep their optimizer's state, such as Adam's moments, between visits.
        sample_indices: a local step asks which samples its batch has, ``batch.sample_indices``.
        nonzeros_alone: only what is not 0 is sent, up and down, and counted as bytes: values, without their positions.
        nothing_replaced: no tensor of the server's takes the place of a client's, which works what it receives into its own.
        other_samples: ``client_loss`` calls the net with samples that are not in the batch, such as remembered ones.
        initial_model: hooks ask for the weights and buffers of the beginning, ``self.initial_model``.
        data: what is needed of the data, which no engine asks for.
    """

    client_weights: bool = False
    client_moments: bool = False
    sample_indices: bool = False
    nonzeros_alone: bool = False
    nothing_replaced: bool = False
    other_samples: bool = False
    initial_model: bool = False
    data: DataNeeds = DataNeeds()

    def __or__(self, other: Self) -> Self:
        """What two methods need that are combined into one."""
        return type(self)(*(getattr(self, need.name) | getattr(other, need.name) for need in fields(self)))
