"""How samples are shared out among clients. A partition is one small class: labels in, one index tensor a client out."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fl_lightning.functional import (
    dirichlet_by_class_partition,
    dirichlet_partition,
    iid_partition,
    shard_partition,
)
from fl_lightning.functional.partition import check_alpha

__all__ = ["IID", "Dirichlet", "DirichletByClass", "Fixed", "Partition", "Shards"]


class Partition(ABC):
    """A way to share out labelled samples among clients."""

    @abstractmethod
    def __call__(self, labels: Tensor, num_clients: int, seed: int) -> list[Tensor]:
        """Indices of each client's samples, none of them twice, for labels of shape (n,)."""

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({settings})"


class Dirichlet(Partition):
    """Equal sizes, class shares from Dir(alpha): :func:`fl_lightning.functional.dirichlet_partition` (Hsu et al. 2019).

    Args:
        alpha: above 0; 0.1 is strong label skew, 100 nearly even.
    """

    def __init__(self, alpha: float = 0.1) -> None:
        check_alpha(alpha)  # before any data is read
        self.alpha = alpha

    def __call__(self, labels: Tensor, num_clients: int, seed: int) -> list[Tensor]:
        return dirichlet_partition(labels, num_clients, self.alpha, seed)


class DirichletByClass(Dirichlet):
    """Unequal sizes, each class cut by Dir(alpha): :func:`fl_lightning.functional.dirichlet_by_class_partition` (MOON).

    Args:
        alpha: above 0; small is skewed, large is even.
        min_size: samples that every client gets at least.
    """

    def __init__(self, alpha: float = 0.1, min_size: int = 10) -> None:
        super().__init__(alpha)
        self.min_size = min_size

    def __call__(self, labels: Tensor, num_clients: int, seed: int) -> list[Tensor]:
        return dirichlet_by_class_partition(labels, num_clients, self.alpha, seed, self.min_size)


class Shards(Partition):
    """A few shards of the data sorted by label: :func:`fl_lightning.functional.shard_partition` (McMahan et al. 2017).

    Args:
        classes_per_client: shards a client gets.
    """

    def __init__(self, classes_per_client: int = 2) -> None:
        if classes_per_client < 1:
            raise ValueError(f"data.partition.classes_per_client is {classes_per_client}, must be at least 1")
        self.classes_per_client = classes_per_client

    def __call__(self, labels: Tensor, num_clients: int, seed: int) -> list[Tensor]:
        return shard_partition(labels, num_clients, self.classes_per_client, seed)


class IID(Partition):
    """Equal random parts: :func:`fl_lightning.functional.iid_partition`."""

    def __call__(self, labels: Tensor, num_clients: int, seed: int) -> list[Tensor]:
        return iid_partition(labels, num_clients, seed)


class Fixed(Partition):
    """Given index lists.

    Args:
        clients: one list of sample indices a client, or the path of a JSON file that holds such a list of lists.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if it is no JSON list of lists of integers.
    """

    def __init__(self, clients: Sequence[Sequence[int]] | str) -> None:
        self._clients = _read_index_lists(Path(clients)) if isinstance(clients, str) else clients

    def __call__(self, labels: Tensor, num_clients: int, seed: int) -> list[Tensor]:
        if len(self._clients) != num_clients:
            raise ValueError(
                f"data.num_clients is {num_clients}, data.partition.clients lists {len(self._clients)} clients: make them equal"
            )
        parts = [torch.as_tensor(indices, dtype=torch.int64) for indices in self._clients]
        held = torch.cat(parts)
        outside = held[(held < 0) | (held >= len(labels))]
        if len(outside) > 0:
            raise ValueError(
                f"data.partition.clients names sample {int(outside[0])}, must be between 0 and {len(labels) - 1}: "
                "use the indices of this data set"
            )
        if len(held.unique()) != len(held):
            repeated = int(held.bincount().argmax())
            raise ValueError(f"data.partition.clients names sample {repeated} more than once: give each sample to one client")
        return parts


def _read_index_lists(path: Path) -> list[list[int]]:
    if not path.is_file():
        raise FileNotFoundError(f"data.partition.clients is {path}, which does not exist: give a JSON file of index lists")
    try:
        clients = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"data.partition.clients is {path}, which is no JSON ({error}): give a list of index lists") from error
    if not isinstance(clients, list) or not all(
        isinstance(client, list) and all(type(index) is int for index in client) for client in clients
    ):
        raise ValueError(f"data.partition.clients is {path}, which holds no list of lists of integers: one list a client")
    return clients
