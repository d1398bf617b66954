"""What a method shows of itself, such as how far a federation has come with the tasks that it learns one after another."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fl_lightning.exchange.client import Client
from fl_lightning.exchange.cohort import Inputs
from fl_lightning.functional.aggregation import State


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


class Shown:
    """What callbacks ask a method for, with the answers of one that has nothing of it to show."""

    def pseudo_data(self, client: Client) -> State:
        """Samples that a client made to rehearse, ``inputs`` (M, ...) and soft ``labels`` (M, C); only of methods with some."""
        return {}

    def task_progress(self) -> TaskProgress | None:
        """How far clients are in their sequences of tasks; None: they learn none."""
        return None

    def attention_tensors(self) -> Mapping[str, str]:
        """Layers by which clients attend to tasks of others: each one's name, and that of its attention in a ``LearnedTask``.

        Attention is (F,) or longer, a value for each row of that task's ``known``.
        """
        return {}

    def class_progress(self) -> ClassProgress | None:
        """How far the global model is in tasks whose classes arrive one after another; None: it learns none."""
        return None

    def nearest_mean_logits(self, inputs: Inputs) -> Tensor | None:
        """(n, C), what the classes' mean features say of samples; None: the server has no such means."""
        return None
