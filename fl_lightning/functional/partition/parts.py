"""The samples of many clients in one table: a tensor for each of a million clients takes seconds and hundreds of megabytes."""

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, ParamSpec

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Arguments = ParamSpec("Arguments")


class Parts(Sequence[Tensor]):
    """Samples of N clients: item k is ``samples[start[k]:start[k + 1]]``, a view.

    Args:
        samples: (n,) int64 indices, client by client.
        sizes: (N,) number of samples of each client; they sum to n.
    """

    def __init__(self, samples: Tensor | NDArray[np.int64], sizes: Tensor | NDArray[np.int64]) -> None:
        self.samples, self.sizes = torch.as_tensor(samples), torch.as_tensor(sizes)
        self.start = torch.cat([torch.zeros(1, dtype=torch.int64), self.sizes.cumsum(0)])
        """(N + 1,), starts of the clients' samples, and the end of the last one."""

    @classmethod
    def of(cls, parts: Sequence[Tensor]) -> "Parts":
        """A table of a list's tensors; a table stays as it is."""
        if isinstance(parts, Parts):
            return parts
        return cls(torch.cat([*parts]), torch.tensor([len(part) for part in parts], dtype=torch.int64))

    @classmethod
    def of_ranges(cls, samples: Tensor | NDArray[np.int64], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> "Parts":
        """A table of ``samples[starts[k]:starts[k] + sizes[k]]`` for every k, in this order."""
        positions = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
        positions += np.arange(len(positions))
        return cls(samples[positions], sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, client: Any) -> Any:
        if isinstance(client, slice):
            return [self[each] for each in range(*client.indices(len(self)))]
        client = range(len(self))[client]
        return self.samples[int(self.start[client]) : int(self.start[client + 1])]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.samples.split(self.sizes.tolist()))


def listed(deal: Callable[Arguments, Parts]) -> Callable[Arguments, list[Tensor]]:
    """The same partition with a list as its result; :func:`inspect.unwrap` gives back the one with a table.

    Example::

        >>> listed(lambda: Parts(torch.tensor([4, 7, 5]), torch.tensor([1, 2])))()
        [tensor([4]), tensor([7, 5])]
    """

    @wraps(deal)
    def partition(*args: Arguments.args, **settings: Arguments.kwargs) -> list[Tensor]:
        return list(deal(*args, **settings))

    return partition
