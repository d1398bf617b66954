"""Measures of how uneven a partition is."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Heterogeneity(NamedTuple):
    """Result of :func:`heterogeneity`. Means run over the clients that hold samples, each counting once."""

    distinct_labels: float  # mean number of classes a client holds
    largest_share: float  # mean share of a client's most frequent class
    distance: float  # mean total-variation distance of a client's class shares from those of all clients together
    smallest: float  # samples of the smallest client
    median: float
    largest: float


def heterogeneity(label_counts: ArrayLike) -> Heterogeneity:
    """Differences between the clients' samples.

    ``distance`` is the mean of ``1/2 * sum_c |p_k(c) - p(c)|``: 0 if all clients are alike, ``1 - 1/C`` if each has one of C
    even classes.

    Args:
        label_counts: (N, C) samples of each class at each client, at least one in all.

    Raises:
        ValueError: if no client holds a sample.

    Example::

        >>> # three quarters of all samples are of the first class
        >>> skew = heterogeneity([[4, 0], [2, 2]])
        >>> skew.distinct_labels, skew.largest_share, skew.distance
        (1.5, 0.75, 0.25)
        >>> skew.smallest, skew.median, skew.largest
        (4.0, 4.0, 4.0)
    """
    counts = np.asarray(label_counts)
    sizes = counts.sum(axis=1)
    if sizes.sum() == 0:
        raise ValueError("the clients hold no samples, so they cannot be compared")
    held = counts[sizes > 0]
    shares = held / held.sum(axis=1, keepdims=True)
    values = (
        (held > 0).sum(axis=1).mean(),
        shares.max(axis=1).mean(),
        abs(shares - counts.sum(axis=0) / sizes.sum()).sum(axis=1).mean() / 2,
        sizes.min(),
        np.median(sizes),
        sizes.max(),
    )
    return Heterogeneity(*map(float, values))
