"""Partitions that deal every client the same number of classes, in parts of equal or of heavy-tailed sizes."""

from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_lightning.checks import ArgumentError, check_range
from fl_lightning.functional.partition.grouping import by_client, checked_labels, indices_by_class
from fl_lightning.functional.partition.parts import Parts, listed

check_base = partial(check_range, at_least=1, hint="the samples of each of its classes a client gets")
"""Refuse a minimum number of samples, after its key, below 1."""
check_sigma = partial(check_range, at_least=0, below=np.inf, hint="0 for even sizes, 2 as in FedProx")
"""Refuse a spread of sizes, after its key, below 0 or infinite."""


@listed
def class_partition(labels: ArrayLike, num_clients: int, classes_per_client: int, seed: int) -> Parts:
    """Clients that hold exactly k classes each; every sample is used.

    Classes are dealt at random and evenly: no client gets one twice, and numbers of owners differ by at most 1. The samples of
    a class are split among its owners into parts of equal size, to one sample. With k = 1 each client has one class, the
    setting of extreme label skew.

    Args:
        labels: (n,) class indices from 0.
        num_clients: N.
        classes_per_client: k, 1 to the number of classes with samples; ``N * k`` at least that number.
        seed: any non-negative integer.

    Raises:
        ValueError: if ``N`` or ``k`` is out of range, or a class has fewer samples than owners.

    Example::

        >>> labels = np.array([0, 0, 1, 1, 2, 2])
        >>> parts = class_partition(labels, num_clients=3, classes_per_client=2, seed=0)
        >>> [len(np.unique(labels[part])) for part in parts], [len(part) for part in parts]
        ([2, 2, 2], [2, 2, 2])
    """
    labels = checked_labels(labels, num_clients)
    rng = np.random.default_rng(seed)
    hands = _deal_classes(np.unique(labels), num_clients, classes_per_client, rng)
    available, owners = np.bincount(labels), np.bincount(hands.ravel())
    if (available < owners).any():
        label = int((available < owners).argmax())
        raise ArgumentError(
            "num_clients",
            f"is {num_clients}: class {label} has {available[label]} samples for its {owners[label]} owners: "
            "lower num_clients or classes_per_client",
        )
    by_class = np.argsort(hands, axis=None, kind="stable")
    rank = np.empty_like(by_class)  # of every dealt class among its equals
    rank[by_class] = np.arange(hands.size) - np.repeat(np.cumsum(owners) - owners, owners)
    sizes = available[hands] // owners[hands] + (rank.reshape(hands.shape) < available[hands] % owners[hands])
    return _hand_out(labels, hands, sizes, rng)


@listed
def power_law_partition(
    labels: ArrayLike, num_clients: int, classes_per_client: int, seed: int, base: int = 1, sigma: float = 2.0
) -> Parts:
    """Clients of k classes with sizes from a heavy-tailed law: many small ones, a few large.

    The recipe of Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (FedProx), for MNIST. Classes are
    dealt as in :func:`class_partition`. An owner of a class gets ``base`` samples of it and a share of the class's other
    samples, ``w_i / sum_j w_j`` with ``w_i`` from lognormal(0, sigma) over the owners, truncated to an integer. The rest after
    truncation, less than one sample per owner and class, belongs to no client: of 50,000 samples 4 % with 5,000 clients of one
    class.

    FedProx takes ``base`` 5 and classes i and i + 1 for client i, and drops the share of a client that would exhaust a class.

    Args:
        labels: (n,) class indices from 0.
        num_clients: N.
        classes_per_client: k, 1 to the number of classes with samples; ``N * k`` at least that number.
        seed: any non-negative integer.
        base: minimum number of samples that an owner of a class gets, 1 or more.
        sigma: 0 for even shares; the larger, the heavier the tail.

    Raises:
        ValueError: if an argument is out of range, or a class has too few samples to give ``base`` to its owners.

    Example::

        >>> parts = power_law_partition(
        ...     [0] * 100, num_clients=4, classes_per_client=1, seed=0, base=5, sigma=0.0
        ... )
        >>> [len(part) for part in parts]  # 5 and an even share of the other 80
        [25, 25, 25, 25]
    """
    labels = checked_labels(labels, num_clients)
    check_base("base", base)
    check_sigma("sigma", sigma)
    rng = np.random.default_rng(seed)
    hands = _deal_classes(np.unique(labels), num_clients, classes_per_client, rng)
    available, owners = np.bincount(labels), np.bincount(hands.ravel())
    rest = available - base * owners
    if (rest < 0).any():
        label = int((rest < 0).argmax())
        raise ArgumentError(
            "base",
            f"is {base}: class {label} has {available[label]} samples for its {owners[label]} owners: "
            "lower base, classes_per_client or num_clients",
        )
    draws = rng.standard_normal(hands.shape)
    largest = np.full(len(owners), -np.inf)
    np.maximum.at(largest, hands, draws)
    # Over the largest of the class, so that no sigma is too large for a float.
    weights = np.exp(sigma * (draws - largest[hands]))
    totals = np.bincount(hands.ravel(), weights.ravel())
    sizes = base + (rest[hands] * weights / totals[hands]).astype(np.int64)
    return _hand_out(labels, hands, sizes, rng)


def _deal_classes(
    classes: NDArray[np.int64], num_clients: int, classes_per_client: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """(N, k) the classes of each client, none twice, each class dealt equally often, to one.

    The classes are laid out lap after lap, each a random order of all, and cut into hands of k. If a hand reaches into the next
    lap, that lap begins with classes that the hand does not have.
    """
    num_classes, k = len(classes), classes_per_client
    check_range("classes_per_client", k, at_least=1, at_most=num_classes, hint="so many classes there are")
    if num_clients * k < num_classes:
        raise ArgumentError(
            "num_clients",
            f"is {num_clients}: at {k} a client, some of the {num_classes} classes have no client: "
            "raise num_clients or classes_per_client",
        )
    num_laps = -(-num_clients * k // num_classes)
    laps = rng.permuted(np.tile(np.arange(num_classes), (num_laps, 1)), axis=1)
    for lap in range(1, num_laps):
        if dealt := lap * num_classes % k:  # classes that the hand across the border has from the previous lap
            row, missing = laps[lap], k - dealt
            has = np.isin(row, laps[lap - 1, num_classes - dealt :])
            if has[:missing].any():
                first = row[~has][:missing]
                laps[lap] = np.concatenate([first, row[~np.isin(row, first)]])
    return classes[rng.permutation(laps.ravel()[: num_clients * k].reshape(num_clients, k))]


def _hand_out(labels: NDArray[np.int64], hands: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator) -> Parts:
    """Give client i ``sizes[i, j]`` random samples of class ``hands[i, j]``, in random order."""
    pools = indices_by_class(labels, int(labels.max()) + 1, rng)
    used = np.bincount(hands.ravel(), sizes.ravel()).astype(np.int64)
    samples = np.concatenate([pool[:count] for pool, count in zip(pools, used, strict=True)])
    by_class = np.argsort(hands, axis=None, kind="stable")
    owners = np.repeat(by_class // hands.shape[1], sizes.ravel()[by_class])
    mixed = rng.permutation(len(samples))
    return by_client(samples[mixed], owners[mixed], len(hands))
