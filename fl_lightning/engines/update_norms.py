"""How far clients' updates go, which tells who blew up a server's step.

Squares are added up in float64, in which those of float32 values do not overflow, and nothing waits for the device. What an
update changes: by the names of an upload, ``origins`` has the global tensors that clients send new values of. What has none
there is a change as it is, and integers, as counters are, do not count.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fl_lightning.exchange.reduction import joined
from fl_lightning.functional.aggregation import State

_CPU_BLOCK = 1 << 16  # values at a time: float64 copies of so many stay in the processor's cache, those of a whole net do not


@torch.no_grad()
def update_norm(sent: Mapping[str, State], origins: Mapping[str, State], device: torch.device | None = None) -> Tensor:
    """Euclidean norm of what one client's update changes, (1,) float64; 0 on ``device`` where nothing can change."""
    parts = [part for change in _changes(sent, origins) for part in _blocks(_as_it_lies(change), dim=0)]
    if not parts:
        return torch.zeros(1, dtype=torch.float64, device=device)
    # One call for all, which counts where visits are short.
    norms = torch._foreach_norm(parts, 2, torch.float64)  # pyright: ignore[reportPrivateImportUsage]
    return torch.linalg.vector_norm(torch.stack(norms), dim=0, keepdim=True)


@torch.no_grad()
def update_norms(
    sent: Mapping[str, State], origins: Mapping[str, State], num_clients: int, device: torch.device | None = None
) -> Tensor:
    """Norms of M clients' updates, (M,) float64, from tensors (M, ...); 0 on ``device`` where nothing can change."""
    changes = [change.reshape(num_clients, -1) for change in _changes(sent, origins)]
    if not changes:
        return torch.zeros(num_clients, dtype=torch.float64, device=device)
    on_cpu = changes[0].device.type == "cpu"
    parts = [part for change in changes for part in _blocks(change, dim=1)] if on_cpu else joined(changes)
    return torch.stack([torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in parts]).norm(dim=0)


def _changes(sent: Mapping[str, State], origins: Mapping[str, State]) -> list[Tensor]:
    changes: list[Tensor] = []
    for name, tensors in sent.items():
        floats = {key: tensor for key, tensor in tensors.items() if tensor.is_floating_point() and tensor.numel() > 0}
        origin = origins.get(name, {})
        moved = [key for key in floats if key in origin]
        if moved:
            new, old = [floats[key] for key in moved], [origin[key] for key in moved]
            changes += torch._foreach_sub(new, old)  # pyright: ignore[reportPrivateImportUsage]
        changes += [tensor for key, tensor in floats.items() if key not in origin]
    return changes


def _as_it_lies(tensor: Tensor) -> Tensor:
    """Its values in the order of memory, so that large ones of convolutions need no copy; small ones as they are."""
    if tensor.device.type != "cpu" or tensor.numel() <= _CPU_BLOCK:
        return tensor
    return tensor.permute(sorted(range(tensor.ndim), key=tensor.stride, reverse=True)).reshape(-1)


def _blocks(tensor: Tensor, dim: int) -> tuple[Tensor, ...]:
    if tensor.device.type != "cpu" or tensor.numel() <= _CPU_BLOCK:
        return (tensor,)
    return tensor.split(max(_CPU_BLOCK * tensor.shape[dim] // tensor.numel(), 1), dim)
