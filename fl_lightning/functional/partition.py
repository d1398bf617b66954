"""Ways to share out a labelled data set among clients.

Every function takes the labels of all samples, shape (n,), and returns one int64 index tensor a client. No index appears
twice. The result is a function of the arguments alone.
"""

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor


def dirichlet_partition(labels: ArrayLike, num_clients: int, alpha: float, seed: int) -> list[Tensor]:
    """Clients of equal size whose class shares follow a Dirichlet distribution.

    Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019:
    client k draws ``q_k ~ Dir(alpha * 1_C)``, then ``n // num_clients`` samples one by one, the class from ``q_k``, the sample
    among that class's unused ones. A class that is used up leaves every ``q_k``, so later clients are skewed further. A
    client left with no class of its own draws from what remains, in proportion. The ``n % num_clients`` samples left over
    belong to nobody.

    Args:
        labels: (n,) class indices from 0.
        num_clients: 1 to n.
        alpha: above 0; small is skewed, large is even.
        seed: any non-negative integer.

    Raises:
        ValueError: if ``alpha`` is not above 0 or there are more clients than samples.
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
        min_size: samples that every client must get.

    Raises:
        ValueError: if ``alpha`` is not above 0, there are more clients than samples, or 1,000 tries gave some client
            fewer than ``min_size`` samples.
    """
    labels = _checked_labels(labels, num_clients)
    check_alpha(alpha)
    rng = np.random.default_rng(seed)
    num_classes = int(labels.max()) + 1
    for _ in range(1000):
        pools = _indices_by_class(labels, num_classes, rng)
        parts: list[list[NDArray[np.int64]]] = [[] for _ in range(num_clients)]
        held = np.zeros(num_clients, dtype=np.int64)
        for pool in pools:
            has_room = (held < len(labels) / num_clients).astype(np.float64)
            shares = rng.dirichlet(np.full(num_clients, alpha)) * has_room
            if shares.sum() == 0:  # the mass lies with full clients, or the class is empty and nobody has room
                shares = has_room if has_room.any() else np.ones(num_clients)
            cuts = (np.cumsum(shares / shares.sum())[:-1] * len(pool)).astype(int)
            for client, piece in enumerate(np.split(pool, cuts)):
                parts[client].append(piece)
                held[client] += len(piece)
        if held.min() >= min_size:
            return [torch.from_numpy(rng.permutation(np.concatenate(part))) for part in parts]
    raise ValueError(
        f"data.partition.alpha is {alpha}: 1,000 draws left some of the {num_clients} clients with fewer than {min_size} "
        "samples: raise alpha, lower data.num_clients or lower data.partition.min_size"
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
    """
    labels = _checked_labels(labels, num_clients)
    num_shards = num_clients * classes_per_client
    if classes_per_client < 1 or num_shards > len(labels):
        raise ValueError(
            f"data.partition.classes_per_client is {classes_per_client}, must be between 1 and "
            f"{len(labels) // num_clients} for {len(labels)} samples and {num_clients} clients"
        )
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
    """
    labels = _checked_labels(labels, num_clients)
    order = np.random.default_rng(seed).permutation(len(labels))
    return [torch.from_numpy(part) for part in np.array_split(order, num_clients)]


def _checked_labels(labels: ArrayLike, num_clients: int) -> NDArray[np.int64]:
    labels = np.asarray(labels).astype(np.int64, copy=False)
    if not 1 <= num_clients <= len(labels):
        raise ValueError(f"data.num_clients is {num_clients}, must be between 1 and the number of samples, {len(labels)}")
    return labels


def check_alpha(alpha: float) -> None:
    """Raise a ValueError unless ``alpha`` is above 0 and finite."""
    if not 0 < alpha < np.inf:
        raise ValueError(
            f"data.partition.alpha is {alpha}, must be above 0: try 0.1 for strong label skew, 100 for nearly even clients"
        )


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
    drawn: list[NDArray[np.int64]] = []
    missing = size
    while missing > 0:
        weights = np.where(left > 0, share, 0.0)
        if weights.sum() <= 0:
            weights = left.astype(np.float64)
        classes = rng.choice(len(pools), size=missing, p=weights / weights.sum())
        keep = missing
        for label in np.unique(classes):
            positions = np.flatnonzero(classes == label)
            if len(positions) >= left[label]:
                keep = min(keep, positions[left[label] - 1] + 1)
        for label, count in zip(*np.unique(classes[:keep], return_counts=True), strict=True):
            drawn.append(pools[label][left[label] - count : left[label]])
            left[label] -= count
        missing -= keep
    return rng.permutation(np.concatenate(drawn))
