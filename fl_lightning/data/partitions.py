"""Partitions of samples among clients. A partition is one small class: labels in, one index tensor per client out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from inspect import unwrap
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.checks import check_whole, class_and_settings, under_keys
from fl_lightning.data.partition_file import read_partition
from fl_lightning.functional import (
    class_partition,
    dirichlet_by_class_partition,
    dirichlet_partition,
    iid_partition,
    owner_partition,
    power_law_partition,
    shard_partition,
)
from fl_lightning.functional.partition.dealt_classes import check_base, check_sigma
from fl_lightning.functional.partition.dirichlet import check_alpha
from fl_lightning.functional.partition.owners import check_min_samples
from fl_lightning.functional.partition.parts import Parts

__all__ = ["IID", "Classes", "Dirichlet", "DirichletByClass", "Fixed", "Natural", "Partition", "PowerLaw", "Shards"]

_KEYS = {"num_clients": "data.num_clients"} | {
    name: f"data.partition.{name}" for name in ("alpha", "base", "classes_per_client", "min_samples", "min_size", "sigma")
}
"""Keys of the command line, by the arguments of the functions that deal."""


class Partition(ABC):
    """A rule that deals labelled samples to clients."""

    deals_classes: bool = False
    """Whether it cannot do without classes, or what else tells samples apart."""

    @abstractmethod
    def __call__(self, labels: Tensor, num_clients: int, seed: int) -> Sequence[Tensor]:
        """Indices of each client's samples, none of them twice, for labels of shape (n,)."""

    def partition(self, labels: Tensor, owners: Tensor | None, num_clients: int, seed: int) -> Sequence[Tensor]:
        """The same; for partitions that use the natural client of every sample, (n,), if it is known."""
        with under_keys(_KEYS):
            return self(labels, num_clients, seed)

    def __repr__(self) -> str:
        return class_and_settings(self)


class Dirichlet(Partition):
    """Equal sizes, class shares from Dir(alpha): :func:`fl_lightning.functional.dirichlet_partition` (Hsu et al. 2019).

    Args:
        alpha: above 0; 0.1 is strong label skew, 100 nearly even.
    """

    deals_classes = True

    def __init__(self, alpha: float = 0.1) -> None:
        check_alpha("data.partition.alpha", alpha)  # before any data is read
        self.alpha = alpha

    def __call__(self, labels: Tensor, num_clients: int, seed: int) -> Parts:
        return _dealt(dirichlet_partition, labels, num_clients, self.alpha, seed)


class DirichletByClass(Dirichlet):
    """Unequal sizes, each class cut by Dir(alpha): :func:`fl_lightning.functional.dirichlet_by_class_partition` (MOON).

    Args:
        alpha: above 0; small is skewed, large is even.
        min_size: minimum number of samples of a client, at least 0.
    """

    def __init__(self, alpha: float = 0.1, min_size: int = 10) -> None:
        super().__init__(alpha)
        self.min_size = min_size

    def __call__(self, labels: Tensor, num_clients: int, seed: int) -> Parts:
        return _dealt(dirichlet_by_class_partition, labels, num_clients, self.alpha, seed, self.min_size)


class Shards(Partition):
    """A few shards of the data sorted by label: :func:`fl_lightning.functional.shard_partition` (McMahan et al. 2017).

    Args:
        classes_per_client: shards of a client.
    """

    deals_classes = True

    def __init__(self, classes_per_client: int = 2) -> None:
        check_whole("data.partition.classes_per_client", classes_per_client, at_least=1)
        self.classes_per_client = classes_per_client

    def __call__(self, labels: Tensor, num_clients: int, seed: int) -> Parts:
        return _dealt(shard_partition, labels, num_clients, self.classes_per_client, seed)


class Classes(Partition):
    """The same number of classes for every client, all samples used: :func:`fl_lightning.functional.class_partition`.

    Args:
        classes_per_client: different classes of a client; numbers of owners of a class differ by at most 1.
    """

    deals_classes = True

    def __init__(self, classes_per_client: int = 1) -> None:
        check_whole("data.partition.classes_per_client", classes_per_client, at_least=1)
        self.classes_per_client = classes_per_client

    def __call__(self, labels: Tensor, num_clients: int, seed: int) -> Parts:
        return _dealt(class_partition, labels, num_clients, self.classes_per_client, seed)


class PowerLaw(Classes):
    """A few classes a client, many small clients, few large: :func:`fl_lightning.functional.power_law_partition` (FedProx).

    Args:
        classes_per_client: different classes of a client; numbers of owners of a class differ by at most 1.
        base: minimum number of samples of each of a client's classes.
        sigma: at least 0; the larger, the more sizes differ.
    """

    def __init__(self, classes_per_client: int = 2, base: int = 1, sigma: float = 2.0) -> None:
        super().__init__(classes_per_client)
        check_base("data.partition.base", base)
        check_sigma("data.partition.sigma", sigma)
        self.base, self.sigma = base, sigma

    def __call__(self, labels: Tensor, num_clients: int, seed: int) -> Parts:
        return _dealt(power_law_partition, labels, num_clients, self.classes_per_client, seed, self.base, self.sigma)


class Natural(Partition):
    """The clients that the data came from: :func:`fl_lightning.functional.owner_partition`.

    Args:
        min_samples: clients with fewer samples are left out.
    """

    def __init__(self, min_samples: int = 1) -> None:
        check_min_samples("data.partition.min_samples", min_samples)
        self.min_samples = min_samples

    def __call__(self, labels: Tensor, num_clients: int, seed: int) -> Parts:
        """As other partitions, with the natural client of every sample, (n,), instead of its label."""
        return _dealt(owner_partition, labels, num_clients, seed, self.min_samples)

    def partition(self, labels: Tensor, owners: Tensor | None, num_clients: int, seed: int) -> Sequence[Tensor]:
        if owners is None:
            raise ValueError(
                "data.partition is Natural, but data.source has no natural clients: use leaf, a CSV file with a client column "
                "or another data.partition"
            )
        return super().partition(owners, None, num_clients, seed)


class IID(Partition):
    """Equal random parts: :func:`fl_lightning.functional.iid_partition`."""

    def __call__(self, labels: Tensor, num_clients: int, seed: int) -> Parts:
        return _dealt(iid_partition, labels, num_clients, seed)


class Fixed(Partition):
    """Given index lists.

    Args:
        clients: one list of sample indices per client, or the path of a JSON file with such a list of lists, or of a file of
            ``fl-lightning partition``, which is refused for data other than those for which it was made.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if it is neither of these.
    """

    def __init__(self, clients: Sequence[Sequence[int]] | str) -> None:
        self._stored = read_partition(Path(clients)) if isinstance(clients, str | Path) else None
        self._clients = clients if self._stored is None else self._stored.clients

    def __call__(self, labels: Tensor, num_clients: int, seed: int) -> Parts:
        if self._stored is not None:
            self._stored.check_made_for(labels)
        try:
            return self._parts()
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:  # such as integers that 64 bits do not hold
            raise ValueError(
                f"data.partition.clients holds something that is not a list of sample indices ({error}): give one list a client"
            ) from error

    def _parts(self) -> Parts:
        if isinstance(self._clients, Parts):
            return self._clients
        if all(isinstance(indices, list | tuple | range) for indices in self._clients):
            sizes = np.fromiter(map(len, self._clients), np.int64)
            return Parts(torch.tensor([*chain.from_iterable(self._clients)]), sizes)
        return Parts.of([torch.as_tensor(indices) for indices in self._clients])

    def __repr__(self) -> str:
        return f"Fixed({'' if self._stored is None else self._stored.path})"


def _dealt(partition: Callable[..., list[Tensor]], *arguments: Any) -> Parts:
    """What the partition lists, as the table that it makes first."""
    return unwrap(partition)(*arguments)
