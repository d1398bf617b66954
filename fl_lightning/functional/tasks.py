"""Scores of tasks that were learned one after another.

Chaudhry et al., "Riemannian Walk for Incremental Learning", ECCV 2018, and Lopez-Paz, Ranzato, "Gradient Episodic Memory for
Continual Learning", NeurIPS 2017, as the FedWeIT paper uses them; and two variants in popular code. ``accuracy`` is (T, T): row
t, column i is the accuracy on task i after task t was learned. Entries above the diagonal are ignored, except by
:func:`forward_transfer`.
"""

import torch
from torch import Tensor


def average_accuracy(accuracy: Tensor) -> Tensor:
    """Mean over tasks of the accuracy after the last one; a scalar in [0, 1].

    Raises:
        ValueError: if ``accuracy`` is not square.

    Example::

        >>> average_accuracy(torch.tensor([[1.0, 0.0], [0.5, 1.0]]))  # (1/2 + 1) / 2
        tensor(0.7500)
    """
    return _checked(accuracy)[-1].mean()


def average_forgetting(accuracy: Tensor) -> Tensor:
    """Mean over all tasks but the last of the largest drop from any earlier time to the end; a scalar in [-1, 1], negative
    where tasks got better, 0 for a single task.

    ``1/(T-1) sum_{i<T} max_{i<=t<T} (a_{t,i} - a_{T,i})``.

    Raises:
        ValueError: if ``accuracy`` is not square.

    Example::

        >>> # (3/4 + 1/4) / 2
        >>> average_forgetting(
        ...     torch.tensor([[0.5, 0.0, 0.0], [1.0, 1.0, 0.0], [0.25, 0.75, 1.0]])
        ... )
        tensor(0.5000)
    """
    accuracy = _checked(accuracy)
    if len(accuracy) == 1:
        return accuracy.new_zeros(())
    best = torch.stack([accuracy[task:-1, task].max() for task in range(len(accuracy) - 1)])
    return (best - accuracy[-1, :-1]).mean()


def backward_transfer(accuracy: Tensor) -> Tensor:
    """The effect of later tasks on earlier ones, ``1/(T-1) sum_{i<T} (a_{T,i} - a_{i,i})``; a scalar in [-1, 1], negative is
    forgetting, 0 for one task.

    Raises:
        ValueError: if ``accuracy`` is not square.

    Example::

        >>> # (-1/4 - 1/4) / 2
        >>> backward_transfer(
        ...     torch.tensor([[0.5, 0.0, 0.0], [1.0, 1.0, 0.0], [0.25, 0.75, 1.0]])
        ... )
        tensor(-0.2500)
    """
    accuracy = _checked(accuracy)
    if len(accuracy) == 1:
        return accuracy.new_zeros(())
    return (accuracy[-1, :-1] - accuracy.diagonal()[:-1]).mean()


def mammoth_forgetting(accuracy: Tensor) -> Tensor:
    """Forgetting as the library mammoth computes it; a scalar in [0, 1], 0 for a single task.

    ``1/(T-1) sum_{i<T} (max_{t<=T} a_{t,i} - a_{T,i})``: the maximum is over all rows, the last one included, and tasks that
    were not learned yet count as 0. A task that is at its best in the end counts as 0, where :func:`average_forgetting` counts
    its gain.

    Raises:
        ValueError: if ``accuracy`` is not square.

    Example::

        >>> # (3/4 + 0) / 2
        >>> mammoth_forgetting(
        ...     torch.tensor([[0.5, 0.0, 0.0], [1.0, 0.5, 0.0], [0.25, 0.75, 1.0]])
        ... )
        tensor(0.3750)
    """
    accuracy = _checked(accuracy)
    if len(accuracy) == 1:
        return accuracy.new_zeros(())
    learned = accuracy.where(torch.ones_like(accuracy, dtype=torch.bool).tril(), 0.0)
    return (learned.amax(dim=0) - learned[-1])[:-1].mean()


def fed_mammoth_forgetting(accuracy: Tensor) -> Tensor:
    """Forgetting as the library fed-mammoth computes it; a scalar in [-1, 1], 0 for a single task.

    ``1/T sum_i (a_{i,i} - a_{T,i})``: the last task is one of T although its drop is always 0, so the value is ``-(T-1)/T``
    times :func:`backward_transfer`.

    Raises:
        ValueError: if ``accuracy`` is not square.

    Example::

        >>> fed_mammoth_forgetting(torch.tensor([[0.5, 0.0], [0.25, 1.0]]))  # (1/4 + 0) / 2
        tensor(0.1250)
    """
    accuracy = _checked(accuracy)
    return (accuracy.diagonal() - accuracy[-1]).mean()


def forward_transfer(accuracy: Tensor, untrained: Tensor) -> Tensor:
    """The effect of earlier tasks on a task before it is learned, ``1/(T-1) sum_{i>1} (a_{i-1,i} - b_i)``; a scalar in [-1, 1],
    positive where they help, 0 for a single task.

    Args:
        accuracy: (T, T), with the entries right above the diagonal.
        untrained: (T,) b, the accuracy of the untrained net on each task.

    Raises:
        ValueError: if the shapes do not match.

    Example::

        >>> forward_transfer(torch.tensor([[1.0, 0.75], [0.5, 1.0]]), torch.tensor([0.5, 0.5]))
        tensor(0.2500)
    """
    accuracy = _checked(accuracy)
    _check_reference("untrained", untrained, accuracy)
    if len(accuracy) == 1:
        return accuracy.new_zeros(())
    return (accuracy.diagonal(1) - untrained[1:]).mean()


def intransigence(accuracy: Tensor, joint: Tensor) -> Tensor:
    """How much worse a task is learned after others than with them, ``1/T sum_i (a*_i - a_{i,i})``; a scalar in [-1, 1],
    positive where it is worse (Chaudhry et al.).

    Args:
        accuracy: (T, T).
        joint: (T,) a*, the accuracy on each task of a net that was trained on the samples of that task and all before it.

    Raises:
        ValueError: if the shapes do not match.

    Example::

        >>> intransigence(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([1.0, 0.75]))
        tensor(0.1250)
    """
    accuracy = _checked(accuracy)
    _check_reference("joint", joint, accuracy)
    return (joint - accuracy.diagonal()).mean()


def average_incremental_accuracy(accuracy: Tensor) -> Tensor:
    """Mean over t of the mean accuracy on the tasks learned up to t, the first one included; a scalar in [0, 1] (Rebuffi et
    al., CVPR 2017, with tasks of one size).

    Raises:
        ValueError: if ``accuracy`` is not square.

    Example::

        >>> # (1 + 3/4) / 2
        >>> average_incremental_accuracy(torch.tensor([[1.0, 0.0], [0.5, 1.0]]))
        tensor(0.8750)
    """
    accuracy = _checked(accuracy)
    return torch.stack([accuracy[task, : task + 1].mean() for task in range(len(accuracy))]).mean()


def _check_reference(name: str, reference: Tensor, accuracy: Tensor) -> None:
    if reference.shape != accuracy.shape[:1]:
        raise ValueError(f"{name} has shape {tuple(reference.shape)}, must be ({len(accuracy)},): one accuracy a task")


def _checked(accuracy: Tensor) -> Tensor:
    if accuracy.ndim != 2 or accuracy.shape[0] != accuracy.shape[1] or len(accuracy) == 0:
        raise ValueError(f"accuracy has shape {tuple(accuracy.shape)}, must be (tasks, tasks): a row after each task")
    return accuracy
