"""Scores of one model on classes that arrived task by task, from counts of its predictions.

``counts`` is (C, C), the samples of class c (row) that are predicted as class c' (column) after a task, over the classes seen;
classes not seen have rows and columns of zeros. ``class_task`` is (C,), the task of each class, from 0. The accuracy after each
task on each task, (T, T), goes into :mod:`fl_lightning.functional.tasks`: Chaudhry et al., "Riemannian Walk for Incremental
Learning", ECCV 2018.
"""

import torch
from torch import Tensor


def confusion_counts(predicted: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """(C, C) int64, the number of samples of each class (row) that are predicted as each class (column).

    Args:
        predicted, targets: (n,) class indices.
        num_classes: C.

    Example::

        >>> confusion_counts(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), num_classes=2)
        tensor([[1, 1],
                [0, 1]])
    """
    return torch.bincount(targets * num_classes + predicted, minlength=num_classes**2).reshape(num_classes, num_classes)


def task_confusion(counts: Tensor, class_task: Tensor, num_tasks: int) -> Tensor:
    """(T, T), share of the samples of each task (row) that are predicted as a class of each task (column).

    Rows of tasks without samples are NaN.

    Example::

        >>> # two classes of task 0, one of task 1
        >>> counts = torch.tensor([[2, 1, 1], [0, 4, 0], [1, 0, 1]])
        >>> # 7 and 1 of 8, 1 and 1 of 2
        >>> task_confusion(counts, torch.tensor([0, 0, 1]), num_tasks=2)
        tensor([[0.8750, 0.1250],
                [0.5000, 0.5000]], dtype=torch.float64)
    """
    is_of = torch.nn.functional.one_hot(class_task, num_tasks).double()
    grouped = is_of.T @ counts.double() @ is_of
    return grouped / grouped.sum(dim=1, keepdim=True)


def tasks_found(counts: Tensor, class_task: Tensor) -> tuple[Tensor, Tensor]:
    """Share of the samples predicted as a class of their own task, and the accuracy among those; scalars.

    Their product is the accuracy. The second is NaN if no sample's task is found; both are NaN without samples.

    Example::

        >>> counts = torch.tensor([[2, 1, 1], [0, 4, 0], [1, 0, 1]])
        >>> tasks_found(counts, torch.tensor([0, 0, 1]))  # 8 of 10, and 7 of these 8
        (tensor(0.8000, dtype=torch.float64), tensor(0.8750, dtype=torch.float64))
    """
    counts = counts.double()
    found = counts[class_task[:, None] == class_task].sum()
    return found / counts.sum(), counts.trace() / found


def old_and_new_accuracy(counts: Tensor, num_old: int) -> tuple[Tensor, Tensor]:
    """Accuracy on the samples of the first ``num_old`` classes, and on those of the others; NaN without samples; scalars.

    Example::

        >>> old_and_new_accuracy(torch.tensor([[3, 1], [1, 1]]), num_old=1)
        (tensor(0.7500, dtype=torch.float64), tensor(0.5000, dtype=torch.float64))
    """
    hits, totals = counts.diagonal().double(), counts.sum(dim=1)
    old, new = ((hits[part].sum() / totals[part].sum()) for part in (slice(num_old), slice(num_old, None)))
    return old, new


def forgetting_by_class(accuracy: Tensor, class_task: Tensor) -> Tensor:
    """Drop of each earlier class from its best accuracy to the last one, mean over the classes of a task, then over tasks.

    Forgetting of Chaudhry et al. with classes instead of tasks, as TARGET (Zhang et al., ICCV 2023) reports it. A scalar;
    classes of the last task, and those that were never measured, are left out; 0 for a single task.

    Args:
        accuracy: (T, C), row t after task t; NaN where a class had not come yet.
        class_task: (C,).

    Example::

        >>> # a drop of 1/2, and a gain of 1/4
        >>> accuracy = torch.tensor([[1.0, 0.5, float("nan")], [0.5, 0.75, 1.0]])
        >>> forgetting_by_class(accuracy, torch.tensor([0, 0, 1]))
        tensor(0.1250)
    """
    last = len(accuracy) - 1
    if last == 0:
        return accuracy.new_zeros(())
    best = accuracy[:-1].nan_to_num(nan=-1.0).amax(dim=0)
    drop = (best - accuracy[-1]).where(best >= 0, float("nan"))
    return torch.stack([drop[class_task == task].nanmean() for task in range(last)]).nanmean()
