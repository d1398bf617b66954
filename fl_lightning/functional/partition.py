"""Partitions of a labelled data set among clients.

Every function takes the labels of all samples, shape (n,), and returns one int64 index tensor a client; these may be views
of one tensor. No index appears twice. The result is a function of the arguments alone. 50,000 clients take seconds.
"""

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fl_lightning.checks import ArgumentError, check_range


def dirichlet_partition(labels: ArrayLike, num_clients: int, alpha: float, seed: int) -> list[Tensor]:
    """Clients of equal size whose class shares follow a Dirichlet distribution.

    Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019:
    client k draws ``q_k ~ Dir(alpha * 1_C)``, then ``n // num_clients`` samples one by one, the class from ``q_k``, the sample
    among that class's unused ones. A class that is used up leaves every ``q_k``, so later clients are skewed further. A
    client left with no class draws from what remains, in proportion. The ``n % num_clients`` samples left over
    belong to nobody.

    Args:
        labels: (n,) class indices from 0.
        num_clients: 1 to n.
        alpha: above 0; small is skewed, large is even.
        seed: any non-negative integer.

    Raises:
        ValueError: if ``alpha`` is not above 0 or there are more clients than samples.

    Example::

        >>> parts = dirichlet_partition([0] * 5 + [1] * 5, num_clients=3, alpha=0.5, seed=0)
        >>> [len(part) for part in parts]  # one sample belongs to nobody
        [3, 3, 3]
    """
    labels = _checked_labels(labels, num_clients)
    check_alpha(alpha)
    rng = np.random.default_rng(seed)
    num_classes = int(labels.max()) + 1
    shares = rng.dirichlet(np.full(num_classes, alpha), size=num_clients)
    pools = _indices_by_class(labels, num_classes, rng)
    left = np.array([len(pool) for pool in pools])
    size = len(labels) // num_clients
    return [torch.from_numpy(_draw_client(shares[client], size, pools, left, rng)) for client in range(num_clients)]


def dirichlet_by_class_partition(
    labels: ArrayLike, num_clients: int, alpha: float, seed: int, min_size: int = 10
) -> list[Tensor]:
    """Clients of unequal size: each class is cut among the clients by Dirichlet proportions.

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
            ``min_size``, or 1,000 tries gave some client fewer.

    Example::

        >>> parts = dirichlet_by_class_partition([0] * 30 + [1] * 30, num_clients=3, alpha=0.5, seed=0, min_size=10)
        >>> sum(len(part) for part in parts), min(len(part) for part in parts) >= 10
        (60, True)
    """
    labels = _checked_labels(labels, num_clients)
    check_alpha(alpha)
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
        pools = _indices_by_class(labels, num_classes, rng)
        sizes = np.zeros((num_classes, num_clients), dtype=np.int64)
        held = np.zeros(num_clients, dtype=np.int64)
        for label, pool in enumerate(pools):
            below_mean = (held < len(labels) / num_clients).astype(np.float64)
            shares = rng.dirichlet(np.full(num_clients, alpha)) * below_mean
            if shares.sum() == 0:  # the mass lies with full clients, or the class is empty and no client may hold more
                shares = below_mean if below_mean.any() else np.ones(num_clients)
            cuts = (np.cumsum(shares / shares.sum())[:-1] * len(pool)).astype(int)
            sizes[label] = np.diff(cuts, prepend=0, append=len(pool))
            held += sizes[label]
        if held.min() >= min_size:
            owners = np.repeat(np.tile(np.arange(num_clients), num_classes), sizes.ravel())
            parts = _by_client(np.concatenate(pools), owners, num_clients)
            return [torch.from_numpy(rng.permutation(part.numpy())) for part in parts]
    raise ArgumentError(
        "alpha",
        f"is {alpha}: 1,000 draws left some of the {num_clients} clients with fewer than {min_size} samples: raise alpha, "
        "lower num_clients or lower min_size",
    )


def shard_partition(labels: ArrayLike, num_clients: int, classes_per_client: int, seed: int) -> list[Tensor]:
    """Clients made of a few shards of the data sorted by label.

    McMahan et al., AISTATS 2017: sort by label, cut into ``num_clients * classes_per_client`` shards of equal size (to one
    sample), give each client ``classes_per_client`` of them at random. A client has at most that many classes where the
    shard size divides every class; a shard across a class border holds two.

    Args:
        labels: (n,) class indices from 0.
        num_clients: 1 to n.
        classes_per_client: shards a client gets, at least 1.
        seed: any non-negative integer.

    Raises:
        ValueError: if ``classes_per_client`` is below 1 or there are more shards than samples.

    Example::

        >>> parts = shard_partition([0, 0, 1, 1, 2, 2], num_clients=3, classes_per_client=1, seed=0)
        >>> sorted(sorted(part.tolist()) for part in parts)
        [[0, 1], [2, 3], [4, 5]]
    """
    labels = _checked_labels(labels, num_clients)
    num_shards = num_clients * classes_per_client
    hint = f"there are {len(labels)} samples for {num_clients} clients"
    check_range("classes_per_client", classes_per_client, at_least=1, at_most=len(labels) // num_clients, hint=hint)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    shards = np.array_split(order[np.argsort(labels[order], kind="stable")], num_shards)
    deal = rng.permutation(num_shards).reshape(num_clients, classes_per_client)
    return [torch.from_numpy(np.concatenate([shards[i] for i in hand])) for hand in deal]


def iid_partition(labels: ArrayLike, num_clients: int, seed: int) -> list[Tensor]:
    """Clients that each get a random part of the data, all of one size to one sample.

    Args:
        labels: (n,) class indices from 0; only their number matters.
        num_clients: 1 to n.
        seed: any non-negative integer.

    Raises:
        ValueError: if there are more clients than samples.

    Example::

        >>> parts = iid_partition([0, 1, 0, 1, 0], num_clients=2, seed=0)
        >>> [len(part) for part in parts], sorted(torch.cat(parts).tolist())
        ([3, 2], [0, 1, 2, 3, 4])
    """
    labels = _checked_labels(labels, num_clients)
    order = np.random.default_rng(seed).permutation(len(labels))
    return [torch.from_numpy(part) for part in np.array_split(order, num_clients)]


def class_partition(labels: ArrayLike, num_clients: int, classes_per_client: int, seed: int) -> list[Tensor]:
    """Clients that hold exactly k classes each; every sample is used.

    Classes are dealt at random and evenly: no client gets one twice, numbers of owners differ by at most 1. The samples of a
    class are cut among its owners into parts of equal size, to one sample. With k = 1 this is the one-class-a-client
    setting of extreme label skew.

    Args:
        labels: (n,) class indices from 0.
        num_clients: N.
        classes_per_client: k, 1 to the number of classes with samples; ``N * k`` at least that number.
        seed: any non-negative integer.

    Raises:
        ValueError: if ``N`` or ``k`` is out of range, or a class has fewer samples than owners.

    Example::

        >>> labels = torch.tensor([0, 0, 1, 1, 2, 2])
        >>> parts = class_partition(labels, num_clients=3, classes_per_client=2, seed=0)
        >>> [len(labels[part].unique()) for part in parts], [len(part) for part in parts]
        ([2, 2, 2], [2, 2, 2])
    """
    labels = _checked_labels(labels, num_clients)
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


def power_law_partition(
    labels: ArrayLike, num_clients: int, classes_per_client: int, seed: int, base: int = 1, sigma: float = 2.0
) -> list[Tensor]:
    """Clients of k classes whose sizes follow a heavy-tailed law: many small ones, a few large.

    The recipe of Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (FedProx), for MNIST. Classes are
    dealt as in :func:`class_partition`. An owner of a class gets ``base`` samples of it and a share of the class's other
    samples, ``w_i / sum_j w_j`` with ``w_i`` from lognormal(0, sigma) over the owners, truncated to an integer. What
    truncation leaves, less than one sample an owner and class, belongs to nobody: of 50,000 samples 4 % with 5,000
    clients of one class.

    FedProx takes ``base`` 5 and classes i and i + 1 for client i, and drops the share of a client that would use a class up.

    Args:
        labels: (n,) class indices from 0.
        num_clients: N.
        classes_per_client: k, 1 to the number of classes with samples; ``N * k`` at least that number.
        seed: any non-negative integer.
        base: samples that an owner of a class gets at least, 1 or more.
        sigma: 0 for even shares; the larger, the heavier the tail.

    Raises:
        ValueError: if an argument is out of range, or a class has too few samples to give ``base`` to its owners.

    Example::

        >>> labels = torch.zeros(100, dtype=torch.int64)
        >>> parts = power_law_partition(labels, num_clients=4, classes_per_client=1, seed=0, base=5, sigma=0.0)
        >>> [len(part) for part in parts]  # 5 and an even share of the other 80
        [25, 25, 25, 25]
    """
    labels = _checked_labels(labels, num_clients)
    check_power_law(base, sigma)
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


def owner_partition(owners: ArrayLike, num_clients: int, seed: int, min_samples: int = 1) -> list[Tensor]:
    """Clients as they are in nature: the writer of a digit, the user of a phone.

    Those with fewer than ``min_samples`` samples are left out; of the others ``num_clients`` are taken at random. Clients come
    in ascending order of their number, samples in the order of the data.

    Args:
        owners: (n,) the natural client of every sample, any integers.
        num_clients: 1 to the number of natural clients that have ``min_samples``.
        seed: any non-negative integer; plays no part if all of them are taken.
        min_samples: at least 1.

    Raises:
        ValueError: if there are fewer such clients than ``num_clients``.

    Example::

        >>> parts = owner_partition([7, 3, 7, 9, 3], num_clients=2, seed=0, min_samples=2)
        >>> [part.tolist() for part in parts]  # of 3 and 7; 9 has one sample
        [[1, 4], [0, 2]]
    """
    owners = np.asarray(owners)
    check_min_samples(min_samples)
    order = np.argsort(owners, kind="stable")
    borders = np.flatnonzero(np.diff(owners[order])) + 1
    sizes = np.diff(borders, prepend=0, append=len(owners))
    kept = np.flatnonzero(sizes >= min_samples)
    hint = f"so many natural clients have min_samples, {min_samples}, or more samples"
    check_range("num_clients", num_clients, at_least=1, at_most=len(kept), hint=hint)
    if num_clients < len(kept):
        kept = np.sort(np.random.default_rng(seed).choice(kept, num_clients, replace=False))
    parts = torch.from_numpy(order).split(sizes.tolist())
    return [parts[client] for client in kept]


def _checked_labels(labels: ArrayLike, num_clients: int) -> NDArray[np.int64]:
    labels = np.asarray(labels).astype(np.int64, copy=False)
    check_range("num_clients", num_clients, at_least=1, at_most=len(labels), hint="so many samples there are")
    return labels


def check_alpha(alpha: float) -> None:
    """Refuse a Dirichlet parameter that is not above 0 and finite.

    Raises:
        ValueError: naming it, its value and what is usual.

    Example::

        >>> check_alpha(0.1)
        >>> check_alpha(0.0)
        Traceback (most recent call last):
        fl_lightning.checks.ArgumentError: alpha is 0.0, must be above 0 and finite: try 0.1 for strong label skew, ...
    """
    hint = "try 0.1 for strong label skew, 100 for nearly even clients"
    check_range("alpha", alpha, above=0, below=np.inf, hint=hint)


def check_power_law(base: int, sigma: float) -> None:
    """Refuse a ``base`` below 1, and a ``sigma`` below 0 or without end.

    Raises:
        ValueError: naming it, its value and what is usual.

    Example::

        >>> check_power_law(base=1, sigma=2.0)
        >>> check_power_law(base=1, sigma=-1.0)
        Traceback (most recent call last):
        fl_lightning.checks.ArgumentError: sigma is -1.0, must be at least 0 and finite: 0 for even sizes, 2 as in FedProx
    """
    check_range("base", base, at_least=1, hint="the samples of each of its classes a client gets")
    check_range("sigma", sigma, at_least=0, below=np.inf, hint="0 for even sizes, 2 as in FedProx")


def check_min_samples(min_samples: int) -> None:
    """Refuse a ``min_samples`` below 1.

    Raises:
        ValueError: naming it and its value.

    Example::

        >>> check_min_samples(1)
        >>> check_min_samples(0)
        Traceback (most recent call last):
        fl_lightning.checks.ArgumentError: min_samples is 0, must be at least 1: smaller clients are left out
    """
    check_range("min_samples", min_samples, at_least=1, hint="smaller clients are left out")


def _deal_classes(
    classes: NDArray[np.int64], num_clients: int, classes_per_client: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """(N, k) the classes of each client, none twice, each class dealt equally often, to one.

    The classes are laid out lap after lap, each a random order of all, and cut into hands of k. Where a hand reaches into the
    next lap, that lap begins with classes that the hand does not have.
    """
    num_classes, k = len(classes), classes_per_client
    check_range("classes_per_client", k, at_least=1, at_most=num_classes, hint="so many classes there are")
    if num_clients * k < num_classes:
        raise ArgumentError(
            "num_clients",
            f"is {num_clients}: at {k} a client, some of the {num_classes} classes belong to nobody: "
            "raise num_clients or classes_per_client",
        )
    num_laps = -(-num_clients * k // num_classes)
    laps = rng.permuted(np.tile(np.arange(num_classes), (num_laps, 1)), axis=1)
    for lap in range(1, num_laps):
        if dealt := lap * num_classes % k:  # classes that the hand across the border has from the lap before
            row, missing = laps[lap], k - dealt
            has = np.isin(row, laps[lap - 1, num_classes - dealt :])
            if has[:missing].any():
                first = row[~has][:missing]
                laps[lap] = np.concatenate([first, row[~np.isin(row, first)]])
    return classes[rng.permutation(laps.ravel()[: num_clients * k].reshape(num_clients, k))]


def _hand_out(
    labels: NDArray[np.int64], hands: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator
) -> list[Tensor]:
    """Give client i ``sizes[i, j]`` random samples of class ``hands[i, j]``, in random order."""
    pools = _indices_by_class(labels, int(labels.max()) + 1, rng)
    used = np.bincount(hands.ravel(), sizes.ravel()).astype(np.int64)
    samples = np.concatenate([pool[:count] for pool, count in zip(pools, used, strict=True)])
    by_class = np.argsort(hands, axis=None, kind="stable")
    owners = np.repeat(by_class // hands.shape[1], sizes.ravel()[by_class])
    mixed = rng.permutation(len(samples))
    return _by_client(samples[mixed], owners[mixed], len(hands))


def _by_client(samples: NDArray[np.int64], owners: NDArray[np.int64], num_clients: int) -> list[Tensor]:
    """The samples of each owner in the order given, as views of one tensor."""
    joined = torch.from_numpy(samples[np.argsort(owners, kind="stable")])
    return list(joined.split(np.bincount(owners, minlength=num_clients).tolist()))


def _indices_by_class(labels: NDArray[np.int64], num_classes: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """The samples of each class, shuffled."""
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    return np.split(order, np.cumsum(np.bincount(labels, minlength=num_classes))[:-1])


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
