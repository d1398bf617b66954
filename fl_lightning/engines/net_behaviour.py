"""A net's behaviour on a batch, found by running it on one."""

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from fl_lightning.functional.random_streams import seeded_layers
from fl_lightning.protocol import NetInputs


def mixes_samples(net: nn.Module, inputs: NetInputs) -> bool:
    """Whether, in train mode, the net's output for a sample or its buffers depend on the rest of the batch.

    Args:
        net: in train mode.
        inputs: (2, ...), two samples.
    """
    if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.training for layer in net.modules()):
        return True
    changed = tree_map(lambda part: torch.stack([part[0], _another(*part)]), inputs)
    first, second = _forward(net, inputs), _forward(net, changed)
    return not all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def draws(net: nn.Module, inputs: NetInputs) -> bool:
    """Whether, in train mode, the net draws from a global generator, as dropout does.

    Args:
        net: in train mode.
        inputs: (2, ...), two samples.
    """
    device = _device(inputs)
    state = torch.cuda.get_rng_state if device.type == "cuda" else torch.get_rng_state
    with _always_the_same_draws(device):
        before = state()
        _outputs_and_buffers(net, inputs)
        return not torch.equal(state(), before)


def activation_bytes(net: nn.Module, inputs: NetInputs) -> int:
    """Bytes per sample that a forward pass keeps for the backward pass, in addition to the weights."""
    weights = {weight.untyped_storage().data_ptr() for weight in net.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with _always_the_same_draws(_device(inputs)), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        outputs = net(inputs)
    return sum(kept.values()) // len(outputs) + outputs[0].numel() * outputs.element_size()


def _another(first: Tensor, second: Tensor) -> Tensor:
    """A sample that differs from the second and that a net takes."""
    if second.is_floating_point():
        noise = torch.randn(second.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return second + noise.to(second)
    return torch.zeros_like(second) if torch.equal(first, second) else first  # indices of an embedding have a largest


def _forward(net: nn.Module, inputs: NetInputs) -> list[Tensor]:
    """The first sample's outputs and the buffers after it; each run starts with the same buffers and draws."""
    with _always_the_same_draws(_device(inputs)):
        return _outputs_and_buffers(net, inputs)


@torch.no_grad()
def _outputs_and_buffers(net: nn.Module, inputs: NetInputs) -> list[Tensor]:
    """The first sample's outputs and the buffers after it, which are restored."""
    before = [buffer.clone() for buffer in net.buffers()]
    outputs = net(inputs)[0]
    after = [buffer.clone() for buffer in net.buffers()]
    for buffer, old in zip(net.buffers(), before, strict=True):
        buffer.copy_(old)
    return [outputs, *after]


def _device(inputs: NetInputs) -> torch.device:
    return tree_leaves(inputs)[0].device


def _always_the_same_draws(device: torch.device) -> AbstractContextManager[None]:
    return seeded_layers(0, -1, -1, "layers", device)
