"""The natural partition of the data, and a test set dealt to clients in proportion to their training samples."""

from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from fl_lightning.checks import check_range
from fl_lightning.functional.partition.grouping import by_client
from fl_lightning.functional.partition.parts import Parts, listed

check_min_samples = partial(check_range, at_least=1, hint="smaller clients are left out")
"""Refuse a number of samples, after its key, below 1."""


@listed
def owner_partition(owners: ArrayLike, num_clients: int, seed: int, min_samples: int = 1) -> Parts:
    """Natural clients: the writer of a digit, the user of a phone.

    Those with fewer than ``min_samples`` samples are left out; of the others ``num_clients`` are taken at random. Clients come
    in ascending order of their number, samples in the order of the data.

    Args:
        owners: (n,) the natural client of every sample, any integers.
        num_clients: 1 to the number of natural clients that have ``min_samples``.
        seed: any non-negative integer; has no effect if all of them are taken.
        min_samples: at least 1.

    Raises:
        ValueError: if there are fewer such clients than ``num_clients``.

    Example::

        >>> parts = owner_partition([7, 3, 7, 9, 3], num_clients=2, seed=0, min_samples=2)
        >>> [part.tolist() for part in parts]  # of 3 and 7; 9 has one sample
        [[1, 4], [0, 2]]
    """
    owners = np.asarray(owners)
    check_min_samples("min_samples", min_samples)
    order = np.argsort(owners, kind="stable")
    borders = np.flatnonzero(np.diff(owners[order])) + 1
    sizes = np.diff(borders, prepend=0, append=len(owners))
    kept = np.flatnonzero(sizes >= min_samples)
    hint = f"so many natural clients have min_samples, {min_samples}, or more samples"
    check_range("num_clients", num_clients, at_least=1, at_most=len(kept), hint=hint)
    if num_clients < len(kept):
        kept = np.sort(np.random.default_rng(seed).choice(kept, num_clients, replace=False))
    starts = np.cumsum(sizes) - sizes
    return Parts.of_ranges(order, starts[kept], sizes[kept])


@listed
def matched_parts(labels: ArrayLike, label_counts: ArrayLike, seed: int) -> Parts:
    """Deal a test set to clients, each class in proportion to the clients' training samples of it.

    The codes of FedRep, LG-FedAvg and FedBABU deal it so. If the test set has the same share of every class's training samples,
    a client's part has the class shares of its training samples, to one sample per class. No sample is dealt twice; samples of
    classes that no client has are left over.

    Args:
        labels: (n,) classes of the test samples, from 0.
        label_counts: (N, C) training samples of each client by class.
        seed: any non-negative integer.

    Returns:
        Indices into ``labels`` of each client; a small client can have none.

    Example::

        >>> parts = matched_parts([0, 0, 0, 0, 1, 1], [[30, 0], [10, 20]], seed=0)
        >>> [len(part) for part in parts]
        [3, 3]
    """
    labels, counts = np.asarray(labels), np.asarray(label_counts).astype(np.int64, copy=False)
    rng = np.random.default_rng(seed)
    dealt, owners = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for label in np.flatnonzero(counts.sum(axis=0)):
        pool = rng.permutation(np.flatnonzero(labels == label))
        running, total = counts[:, label].cumsum(), counts[:, label].sum()
        borders = (2 * running * len(pool) + total) // (2 * total)  # rounded shares of all clients up to each
        dealt.append(pool)
        owners.append(np.repeat(np.arange(len(counts)), np.diff(borders, prepend=0)))
    return by_client(np.concatenate(dealt), np.concatenate(owners), len(counts))
