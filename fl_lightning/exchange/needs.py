"""What a method needs of the engine that runs it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Needs:
    """Declared by a method as ``needs``; an engine knows nothing else about it.

    Args:
        client_weights: clients keep all their weights between visits, which those that do not receive go on from.
        client_moments: clients keep their optimizer's state, such as Adam's moments, between visits.
        sample_indices: a local step asks which samples its batch has, ``batch.sample_indices``.
        nonzeros_alone: only what is not 0 is sent, up and down, and counted as bytes: values, without their positions.
        task_streams: clients learn the tasks of ``data.tasks``, one after another.
        client_start: there is something to prepare before a local fit. Follows from the class, as the next one does.
        each_model: something is read off each client's model after its fit, in addition to its weights and buffers.
    """

    client_weights: bool = False
    client_moments: bool = False
    sample_indices: bool = False
    nonzeros_alone: bool = False
    task_streams: bool = False
    client_start: bool = False
    each_model: bool = False
