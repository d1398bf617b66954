"""A test set dealt to clients in proportion to their training samples."""

import numpy as np
from numpy.typing import ArrayLike

from fl_lightning.functional.partition.grouping import by_client
from fl_lightning.functional.partition.parts import Parts, listed


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
