"""Partitions into equal sizes: cut from the data in random order, or sorted by label."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_lightning.checks import check_range
from fl_lightning.functional.partition.grouping import checked_labels
from fl_lightning.functional.partition.parts import Parts, listed


@listed
def iid_partition(labels: ArrayLike, num_clients: int, seed: int) -> Parts:
    """Clients that each get a random part of the data, all of one size to one sample.

    Args:
        labels: (n,) class indices from 0; only their number matters.
        num_clients: 1 to n.
        seed: any non-negative integer.

    Raises:
        ValueError: if there are more clients than samples.

    Example::

        >>> parts = iid_partition([0, 1, 0, 1, 0], num_clients=2, seed=0)
        >>> [len(part) for part in parts], sorted(np.concatenate(parts).tolist())
        ([3, 2], [0, 1, 2, 3, 4])
    """
    labels = checked_labels(labels, num_clients)
    order = np.random.default_rng(seed).permutation(len(labels))
    return Parts(order, _even_sizes(len(labels), num_clients))


@listed
def shard_partition(labels: ArrayLike, num_clients: int, classes_per_client: int, seed: int) -> Parts:
    """Clients made of a few shards of the data sorted by label.

    McMahan et al., AISTATS 2017: sort by label, cut into ``num_clients * classes_per_client`` shards of equal size (to one
    sample), give each client ``classes_per_client`` of them at random. A client has at most that many classes if the shard size
    divides every class; a shard across a class border has two.

    Args:
        labels: (n,) class indices from 0.
        num_clients: 1 to n.
        classes_per_client: shards a client gets, at least 1.
        seed: any non-negative integer.

    Raises:
        ValueError: if ``classes_per_client`` is below 1 or there are more shards than samples.

    Example::

        >>> parts = shard_partition(
        ...     [0, 0, 1, 1, 2, 2], num_clients=3, classes_per_client=1, seed=0
        ... )
        >>> sorted(sorted(part.tolist()) for part in parts)
        [[0, 1], [2, 3], [4, 5]]
    """
    labels = checked_labels(labels, num_clients)
    num_shards = num_clients * classes_per_client
    hint = f"there are {len(labels)} samples for {num_clients} clients"
    check_range("classes_per_client", classes_per_client, at_least=1, at_most=len(labels) // num_clients, hint=hint)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    by_label = order[np.argsort(labels[order], kind="stable")]
    sizes = _even_sizes(len(labels), num_shards)
    starts, deal = np.cumsum(sizes) - sizes, rng.permutation(num_shards)
    dealt = Parts.of_ranges(by_label, starts[deal], sizes[deal])
    return Parts(dealt.samples, dealt.sizes.reshape(num_clients, classes_per_client).sum(dim=1))


def _even_sizes(count: int, num_parts: int) -> NDArray[np.int64]:
    """Sizes of parts that differ by at most 1, larger ones first, as ``np.array_split`` cuts."""
    return np.full(num_parts, count // num_parts) + (np.arange(num_parts) < count % num_parts)
