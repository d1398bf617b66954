"""What a method needs of the engine that runs it."""

from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True)
class Needs:
    """Declared by a method as ``needs``; an engine knows nothing else about it.

    Args:
        client_weights: clients keep all their weights between visits, which those that do not receive go on from.
        client_moments: clients keep their optimizer's state, such as Adam's moments, between visits.
        sample_indices: a local step asks which samples its batch has, ``batch.sample_indices``.
        nonzeros_alone: only what is not 0 is sent, up and down, and counted as bytes: values, without their positions.
        task_streams: each client learns its sequence of the tasks of ``data.tasks``.
        arriving_classes: the global model learns the tasks of ``data.tasks``, whose classes arrive one after another.
        public_samples: the server trains on public samples, those of ``data.public_size``.
        other_samples: ``client_loss`` calls the net with samples that are not in the batch, such as remembered ones.
        initial_model: hooks ask for the weights and buffers of the beginning, ``self.initial_model``.
    """

    client_weights: bool = False
    client_moments: bool = False
    sample_indices: bool = False
    nonzeros_alone: bool = False
    task_streams: bool = False
    arriving_classes: bool = False
    public_samples: bool = False
    other_samples: bool = False
    initial_model: bool = False

    def __or__(self, other: Self) -> Self:
        """What two methods need that are combined into one."""
        return type(self)(*(getattr(self, need.name) or getattr(other, need.name) for need in fields(self)))
