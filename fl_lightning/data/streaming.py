"""Samples that stay on disk: read ahead by worker processes while a client trains."""

import weakref
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class Stream:
    """Rows of a tensor that is mapped from a file, a batch at a time.

    One pass at a time: the next breaks off the one before, and leaves nothing of it behind.

    Args:
        inputs: (n, ...), in memory that the workers can share: a mapped file, above all.
        num_workers: processes that read ahead; 0 reads in this one.
        pin: whether batches go to a GPU.
    """

    def __init__(self, inputs: Tensor, num_workers: int, pin: bool) -> None:
        self._order: list[Tensor] = []
        self._passes = 0
        # Only a forked process sees the mapping as it is; any other would be sent a copy of everything.
        settings = {"persistent_workers": True, "multiprocessing_context": "fork"} if num_workers > 0 else {}
        self._loader = DataLoader(
            _Rows(inputs),
            batch_size=None,
            sampler=self._order,
            num_workers=num_workers,
            pin_memory=pin,
            generator=torch.Generator(),  # each pass draws a seed for the workers; not from the global generator
            **settings,
        )
        # Collected in a cycle, with a trainer say, the loader's queues would close before it tells its workers to end, and it
        # would wait 5 seconds for each. From here it is told by someone outside of the cycle.
        weakref.finalize(self, _end_workers, self._loader)

    def read(self, batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """The rows of each batch of indices, in order.

        Raises:
            RuntimeError: where a pass goes on after another has begun: it would get the other's rows.
        """
        self._passes += 1
        this_pass, self._order[:] = self._passes, batches
        for count, rows in enumerate(self._loader, start=1):
            yield rows
            if self._passes != this_pass and count == len(batches):
                return
            if self._passes != this_pass:
                raise RuntimeError("a pass over streamed samples goes on after another has begun: finish one before the next")


def _end_workers(loader: DataLoader) -> None:
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()  # pyright: ignore[reportAttributeAccessIssue]


class _Rows(Dataset):
    def __init__(self, inputs: Tensor) -> None:
        self.inputs = inputs

    def __getitem__(self, indices: Tensor) -> Tensor:
        return self.inputs[indices]
