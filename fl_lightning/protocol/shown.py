"""Values that a method shows to callbacks, such as a federation's progress in its tasks."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class TaskProgress:
    """Progress of clients that each learn their own sequence of T tasks.

    Args:
        positions: position of each client's present task in its sequence, from 0; T: it has learned all.
        accuracy: (N, T, T), of each client at each position on the task of each position, NaN if it was not measured.
        model_values: (N,), number of values in each client's model.
    """

    positions: list[int]
    accuracy: Tensor
    model_values: Tensor


@dataclass(frozen=True)
class ClassProgress:
    """Progress of a global model with classes that arrive task by task.

    Args:
        task: position of the present task, from 0.
        is_over: whether it has had all its rounds.
        rounds_per_task: rounds after which a task is over.
        num_old: classes seen before the present task.
    """

    task: int
    is_over: bool
    rounds_per_task: int
    num_old: int
