"""Partitions by a Dirichlet distribution: over the classes of each client, or over the clients of each class."""

from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_lightning.checks import ArgumentError, check_range
from fl_lightning.functional.partition.grouping import by_client, checked_labels, indices_by_class
from fl_lightning.functional.partition.parts import Parts, listed

_ALPHA = "try 0.1 for strong label skew, 100 for nearly even clients"
check_alpha = partial(check_range, above=0, below=np.inf, hint=_ALPHA)
"""Refuse a Dirichlet parameter, after its key, that is not above 0 and finite."""


@listed
def dirichlet_partition(labels: ArrayLike, num_clients: int, alpha: float, seed: int) -> Parts:
    """Clients of equal size with class shares from a Dirichlet distribution.

    Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019:
    client k draws ``q_k ~ Dir(alpha * 1_C)``, then ``n // num_clients`` samples one by one, the class from ``q_k``, the sample
    among that class's unused ones. An exhausted class leaves every ``q_k``, so later clients are skewed further. A client left
    with no class draws from the remaining samples, in proportion. The ``n % num_clients`` samples left over belong to no
    client.

    Args:
        labels: (n,) class indices from 0.
        num_clients: 1 to n.
        alpha: above 0; small is skewed, large is even.
        seed: any non-negative integer.

    Raises:
        ValueError: if ``alpha`` is not above 0 or there are more clients than samples.

    Example::

        >>> parts = dirichlet_partition([0] * 5 + [1] * 5, num_clients=3, alpha=0.5, seed=0)
        >>> [len(part) for part in parts]  # one sample is left over
        [3, 3, 3]
    """
    labels = checked_labels(labels, num_clients)
    check_alpha("alpha", alpha)
    rng = np.random.default_rng(seed)
    num_classes = int(labels.max()) + 1
    shares = rng.dirichlet(np.full(num_classes, alpha), size=num_clients)
    pools = indices_by_class(labels, num_classes, rng)
    left = np.array([len(pool) for pool in pools])
    size = len(labels) // num_clients
    drawn = np.empty((num_clients, size), dtype=np.int64)
    for client in range(num_clients):
        drawn[client] = _draw_client(shares[client], size, pools, left, rng)
    return Parts(drawn.ravel(), np.full(num_clients, size))


@listed
def dirichlet_by_class_partition(labels: ArrayLike, num_clients: int, alpha: float, seed: int, min_size: int = 10) -> Parts:
    """Clients of unequal size: each class is split among the clients by Dirichlet proportions.

    The recipe of Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021, and NIID-Bench: for each class draw
    proportions over clients from ``Dir(alpha * 1_N)``, set them to 0 for clients that already hold ``n / N`` samples,
    renormalise and cut; start over until the smallest client has ``min_size`` samples.

    Args:
        labels: (n,) class indices from 0.
        num_clients: 1 to n.
        alpha: above 0; small is skewed, large is even.
        seed: any non-negative integer.
        min_size: samples that every client must get, at least 0.

    Raises:
        ValueError: if ``alpha`` is not above 0, there are more clients than samples, the samples cannot give every client
            ``min_size``, or 1,000 tries gave a client fewer.

    Example::

        >>> parts = dirichlet_by_class_partition(
        ...     [0] * 30 + [1] * 30, num_clients=3, alpha=0.5, seed=0, min_size=10
        ... )
        >>> sum(len(part) for part in parts), min(len(part) for part in parts) >= 10
        (60, True)
    """
    labels = checked_labels(labels, num_clients)
    check_alpha("alpha", alpha)
    check_range("min_size", min_size, at_least=0, hint="samples that every client gets")
    if min_size * num_clients > len(labels):
        raise ArgumentError(
            "min_size",
            f"is {min_size}, must be at most {len(labels) // num_clients} for {len(labels)} samples and {num_clients} clients: "
            "lower it or num_clients",
        )
    rng = np.random.default_rng(seed)
    num_classes = int(labels.max()) + 1
    for _ in range(1000):
        pools = indices_by_class(labels, num_classes, rng)
        sizes = np.zeros((num_classes, num_clients), dtype=np.int64)
        held = np.zeros(num_clients, dtype=np.int64)
        for label, pool in enumerate(pools):
            below_mean = (held < len(labels) / num_clients).astype(np.float64)
            shares = rng.dirichlet(np.full(num_clients, alpha)) * below_mean
            if shares.sum() == 0:  # only full clients have mass, or the class is empty and no client may hold more
                shares = below_mean if below_mean.any() else np.ones(num_clients)
            cuts = (np.cumsum(shares / shares.sum())[:-1] * len(pool)).astype(int)
            sizes[label] = np.diff(cuts, prepend=0, append=len(pool))
            held += sizes[label]
        if held.min() >= min_size:
            owners = np.repeat(np.tile(np.arange(num_clients), num_classes), sizes.ravel())
            parts = by_client(np.concatenate(pools), owners, num_clients)
            for part in parts:
                rng.shuffle(part.numpy())
            return parts
    raise ArgumentError(
        "alpha",
        f"is {alpha}: 1,000 draws left some of the {num_clients} clients with fewer than {min_size} samples: raise alpha, "
        "lower num_clients or lower min_size",
    )


def _draw_client(
    share: NDArray[np.float64],
    size: int,
    pools: list[NDArray[np.int64]],
    left: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Draw ``size`` samples with class probabilities ``share``; lowers ``left``, the unused samples of each class, in place.

    Classes are drawn in one go and kept up to the draw that uses a class up, which is the same as drawing one by one.
    """
    # Plain operations instead of rng.choice and np.unique, which take most of the time where clients are small; the draws
    # are those of rng.choice.
    drawn: list[NDArray[np.int64]] = []
    missing = size
    while missing > 0:
        weights = np.where(left > 0, share, 0.0)
        total = weights.sum()
        if total <= 0:
            weights = left.astype(np.float64)
            total = weights.sum()
        bounds = (weights / total).cumsum()
        bounds /= bounds[-1]
        classes = bounds.searchsorted(rng.random(missing), side="right")
        counts = np.bincount(classes, minlength=len(left))
        used_up = np.flatnonzero((counts >= left) & (counts > 0))
        keep = min((np.flatnonzero(classes == label)[left[label] - 1] + 1 for label in used_up), default=missing)
        if keep < missing:
            counts = np.bincount(classes[:keep], minlength=len(left))
        for label in np.flatnonzero(counts):
            drawn.append(pools[label][left[label] - counts[label] : left[label]])
        left -= counts
        missing -= keep
    return rng.permutation(np.concatenate(drawn))
