"""Storage of samples: on the device that trains, or where the source has them, from where they are streamed to it."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Literal

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from fl_lightning.checks import machine_memory
from fl_lightning.data.samples import Dataset, Samples
from fl_lightning.protocol import NetInputs

Storage = Literal["auto", "device", "stream"]


class StoredSamples:
    """Samples with targets on a device, and with inputs on it too or streamed to it.

    Args:
        streamed: whether the inputs stay where they are.
        num_workers: threads that read streamed inputs ahead; 0 for none.
    """

    def __init__(self, samples: Samples, device: torch.device, streamed: bool, num_workers: int) -> None:
        self.inputs = samples.inputs if streamed else tree_map(lambda part: part.to(device), samples.inputs)
        self.targets, self.device, self.streamed = samples.targets.to(device), device, streamed
        self._ahead = 2 * num_workers  # batches
        self._readers = ThreadPoolExecutor(num_workers, "reader") if streamed and num_workers > 0 else None

    def __len__(self) -> int:
        return len(self.targets)

    def read(self, batches: Iterable[Tensor]) -> Iterator[tuple[NetInputs, Tensor]]:
        """For each tensor of n indices, on the device: inputs (n, ...) as stored, and targets in the shape of the indices.

        For streamed inputs, all indices are read before the first inputs are returned; otherwise one tensor at a time.
        """
        if not self.streamed:
            for indices in batches:
                indices = indices.to(self.device)
                yield self.rows(indices), self.targets[indices]
            return
        batches = [indices.cpu() for indices in batches]
        for indices, inputs in zip(batches, self._streamed_rows(batches), strict=True):
            placed = tree_map(lambda part: part.to(self.device, non_blocking=True), inputs)
            yield placed, self.targets[indices.to(self.device)]

    def rows(self, indices: Tensor) -> NetInputs:
        """Inputs (n, ...) as stored and where they are stored, of n indices of any shape there."""
        flat = indices.reshape(-1)
        return tree_map(lambda part: part[flat], self.inputs)

    def _streamed_rows(self, batches: Sequence[Tensor]) -> Iterator[NetInputs]:
        """Inputs of each batch in order, some read ahead."""
        if self._readers is None:
            yield from map(self._pinned, batches)
            return
        reads = (self._readers.submit(self._pinned, indices) for indices in batches)
        ahead = deque(islice(reads, self._ahead))
        while ahead:
            rows = ahead.popleft().result()
            ahead.extend(islice(reads, 1))
            yield rows

    def _pinned(self, indices: Tensor) -> NetInputs:
        rows = self.rows(indices)
        if self.device.type != "cuda":
            return rows
        with torch.cuda.device(self.device):  # for this thread: pinning would use memory of the first GPU
            return tree_map(Tensor.pin_memory, rows)


def place_samples(
    dataset: Dataset, device: torch.device, storage: Storage, num_workers: int, announce: bool
) -> tuple[StoredSamples, StoredSamples]:
    """Training and test samples of a dataset, stored as ``data.storage`` requires.

    Args:
        storage: ``auto`` streams samples that do not fit on the device.
        announce: whether to print it if so.
    """
    num_bytes = sum(tensor.nbytes for part in (dataset.train, dataset.test) for tensor in tree_leaves(part.inputs))
    streamed = storage == "stream" or (storage == "auto" and not fits(num_bytes, device))
    if streamed and storage == "auto" and announce:
        rank_zero_only(print)(
            f"Data: streamed from disk, {num_bytes / 1e9:.3g} GB take more than half of the memory of {device} "
            "(data.storage device keeps them there all the same)"
        )
    train, test = (StoredSamples(part, device, streamed, num_workers) for part in (dataset.train, dataset.test))
    return train, test


def fits(num_bytes: int, device: torch.device) -> bool:
    """Whether samples fit on a device: they take at most half of a GPU's free memory, or of this machine's memory."""
    if device.type == "cuda":
        return num_bytes <= torch.cuda.mem_get_info(device)[0] // 2
    return num_bytes <= machine_memory() / 2
