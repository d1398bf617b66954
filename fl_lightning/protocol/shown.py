"""What a method shows of itself, such as how far a federation has come with the tasks that it learns one after another."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class TaskProgress:
    """Of clients of which each learns its sequence of T tasks.

    Args:
        positions: of each client's present task in its sequence, from 0; T: it has learned all.
        accuracy: (N, T, T), of each client at each position on the task of each position, NaN where it was not measured.
        model_values: (N,), numbers that each client's model consists of.
    """

    positions: list[int]
    accuracy: Tensor
    model_values: Tensor


@dataclass(frozen=True)
class ClassProgress:
    """Of a global model whose classes arrive task by task.

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
