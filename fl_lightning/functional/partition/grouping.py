"""Samples by class, and by client: the first and the last step of a partition."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_lightning.checks import check_range
from fl_lightning.functional.partition.parts import Parts


def checked_labels(labels: ArrayLike, num_clients: int) -> NDArray[np.int64]:
    """The labels as int64 indices, if there are samples for this many clients.

    Raises:
        ValueError: if there are no clients, or more clients than samples.

    Example::

        >>> checked_labels([0, 1], num_clients=2)
        array([0, 1])
        >>> checked_labels([0, 1], num_clients=3)
        Traceback (most recent call last):
        fl_lightning.checks.ArgumentError: num_clients is 3, must be between 1 and 2: each needs a training sample
    """
    labels = np.asarray(labels).astype(np.int64, copy=False)
    check_range("num_clients", num_clients, at_least=1, at_most=len(labels), hint="each needs a training sample")
    return labels


def indices_by_class(labels: NDArray[np.int64], num_classes: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """The samples of each class, shuffled.

    Example::

        >>> pools = indices_by_class(
        ...     np.array([1, 0, 1]), num_classes=3, rng=np.random.default_rng(0)
        ... )
        >>> [sorted(pool.tolist()) for pool in pools]
        [[1], [0, 2], []]
    """
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    return np.split(order, np.cumsum(np.bincount(labels, minlength=num_classes))[:-1])


def by_client(samples: NDArray[np.int64], owners: NDArray[np.int64], num_clients: int) -> Parts:
    """The samples of each owner in the order given.

    Example::

        >>> [
        ...     part.tolist()
        ...     for part in by_client(
        ...         np.array([5, 6, 7]), np.array([1, 0, 1]), num_clients=3
        ...     )
        ... ]
        [[6], [5, 7], []]
    """
    return Parts(samples[np.argsort(owners, kind="stable")], np.bincount(owners, minlength=num_clients))
