"""Scores of tasks that were learned one after another.

Chaudhry et al., "Riemannian Walk for Incremental Learning", ECCV 2018, and Lopez-Paz, Ranzato, "Gradient Episodic Memory for
Continual Learning", NeurIPS 2017, as the FedWeIT paper uses them. ``accuracy`` is (T, T): row t, column i is the accuracy on
task i after task t was learned. Entries above the diagonal are ignored.
"""

import torch
from torch import Tensor


def average_accuracy(accuracy: Tensor) -> Tensor:
    """Mean over tasks of the accuracy after the last one; a scalar.

    Raises:
        ValueError: if ``accuracy`` is not square.

    Example::

        >>> average_accuracy(torch.tensor([[1.0, 0.0], [0.5, 1.0]]))  # (1/2 + 1) / 2
        tensor(0.7500)
    """
    return _checked(accuracy)[-1].mean()


def average_forgetting(accuracy: Tensor) -> Tensor:
    """Mean over all tasks but the last of the largest drop from any earlier time to the end; a scalar, negative where tasks got
    better, 0 for a single task.

    ``1/(T-1) sum_{i<T} max_{i<=t<T} (a_{t,i} - a_{T,i})``.

    Raises:
        ValueError: if ``accuracy`` is not square.

    Example::

        >>> average_forgetting(torch.tensor([[0.5, 0.0, 0.0], [1.0, 1.0, 0.0], [0.25, 0.75, 1.0]]))  # (3/4 + 1/4) / 2
        tensor(0.5000)
    """
    accuracy = _checked(accuracy)
    if len(accuracy) == 1:
        return accuracy.new_zeros(())
    best = torch.stack([accuracy[task:-1, task].max() for task in range(len(accuracy) - 1)])
    return (best - accuracy[-1, :-1]).mean()


def backward_transfer(accuracy: Tensor) -> Tensor:
    """The effect of later tasks on earlier ones, ``1/(T-1) sum_{i<T} (a_{T,i} - a_{i,i})``; negative is forgetting, 0 for one
    task.

    Raises:
        ValueError: if ``accuracy`` is not square.

    Example::

        >>> backward_transfer(torch.tensor([[0.5, 0.0, 0.0], [1.0, 1.0, 0.0], [0.25, 0.75, 1.0]]))  # (-1/4 - 1/4) / 2
        tensor(-0.2500)
    """
    accuracy = _checked(accuracy)
    if len(accuracy) == 1:
        return accuracy.new_zeros(())
    return (accuracy[-1, :-1] - accuracy.diagonal()[:-1]).mean()


def _checked(accuracy: Tensor) -> Tensor:
    if accuracy.ndim != 2 or accuracy.shape[0] != accuracy.shape[1] or len(accuracy) == 0:
        raise ValueError(f"accuracy has shape {tuple(accuracy.shape)}, must be (tasks, tasks): a row after each task")
    return accuracy
