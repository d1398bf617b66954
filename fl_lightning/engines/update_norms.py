"""Norms of clients' updates. They show the client that made a server's step non-finite, and whether an update is finite.

Squares are added up in float64, in which those of float32 values do not overflow, or in float32 where they are known not to.
Nothing waits for the device. By the names of an upload, ``origins`` has the global tensors for which clients send new values. A
tensor without an origin is itself a change. Integers, such as counters, do not count.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fl_lightning.engines.sums import joined
from fl_lightning.functional.aggregation import State

# Values of several clients, and of one, at a time: copies of so many stay in the processor's cache, those of a net do not.
_CPU_BLOCK, _CPU_BLOCK_OF_ONE = 1 << 16, 1 << 17
_SMALLEST, _LARGEST = 1e-24, 1e36  # sums of squares that float32 holds, except of values that do not matter


@torch.no_grad()
def update_norm(sent: Mapping[str, State], origins: Mapping[str, State], device: torch.device | None = None) -> Tensor:
    """Euclidean norm of one client's update, (1,) float64; 0 on ``device`` if nothing can change."""
    pairs = [pair for name, tensors in sent.items() for pair in _pairs(tensors, origins.get(name, {}))]
    large = [pair for pair in pairs if _is_large(pair[0])]
    changes = _changes([pair for pair in pairs if not _is_large(pair[0])])
    # One call for all, which matters if visits are short.
    norms = torch._foreach_norm(changes, 2, torch.float64) if changes else []  # pyright: ignore[reportPrivateImportUsage]
    norms = [*norms, *(norm for new, old in large for norm in _norms_of_blocks(new, old))]
    if not norms:
        return torch.zeros(1, dtype=torch.float64, device=device)
    return torch.linalg.vector_norm(torch.stack(norms), dim=0, keepdim=True)


@torch.no_grad()
def update_norms(
    sent: Mapping[str, State], origins: Mapping[str, State], num_clients: int, device: torch.device | None = None
) -> Tensor:
    """Norms of M clients' updates, (M,) float64, from tensors (M, ...); 0 on ``device`` if nothing can change."""
    pairs = [pair for name, tensors in sent.items() for pair in _pairs(tensors, origins.get(name, {}))]
    changes = [change.reshape(num_clients, -1) for change in _changes(pairs)]
    if not changes:
        return torch.zeros(num_clients, dtype=torch.float64, device=device)
    on_cpu, width = changes[0].device.type == "cpu", max(_CPU_BLOCK // num_clients, 1)
    parts = [part for change in changes for part in change.split(width, dim=1)] if on_cpu else joined(changes)
    return torch.stack([torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in parts]).norm(dim=0)


def _pairs(tensors: State, origin: State) -> list[tuple[Tensor, Tensor | None]]:
    """New values and those before; None for tensors that are themselves a change."""
    floats = {key: tensor for key, tensor in tensors.items() if tensor.is_floating_point() and tensor.numel() > 0}
    return [(tensor, origin.get(key)) for key, tensor in floats.items()]


def _changes(pairs: Sequence[tuple[Tensor, Tensor | None]]) -> list[Tensor]:
    moved = [(new, old) for new, old in pairs if old is not None]
    differences = []
    if moved:
        differences = torch._foreach_sub(*map(list, zip(*moved, strict=True)))  # pyright: ignore[reportPrivateImportUsage]
    return [*differences, *(new for new, old in pairs if old is None)]


def _is_large(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.numel() > _CPU_BLOCK


def _norms_of_blocks(new: Tensor, old: Tensor | None) -> list[Tensor]:
    """Norms of parts of a change, with values in the memory order of the new ones."""
    order = sorted(range(new.ndim), key=new.stride, reverse=True)
    parts = (tensor.permute(order).reshape(-1).split(_CPU_BLOCK_OF_ONE) for tensor in (new, old) if tensor is not None)
    memory = torch.empty(_CPU_BLOCK_OF_ONE, dtype=new.dtype)
    return [_norm(memory[: len(now)], now, *before) for now, *before in zip(*parts, strict=True)]


def _norm(memory: Tensor, new: Tensor, old: Tensor | None = None) -> Tensor:
    change = new if old is None else torch.sub(new, old, out=memory)
    if change.dtype == torch.float32:
        squares = torch.dot(change, change)
        if _SMALLEST < squares < _LARGEST:  # on a CPU, where nothing has to wait for this
            return squares.double().sqrt()
    change = change.double()
    return torch.dot(change, change).sqrt()
