"""A net's behaviour on a batch, found by running it on one: two samples, (2, ...), with the net in train mode."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import CheckpointError

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.functional.counted_dropout import CountedDropout
from fl_lightning.functional.random_streams import seeded_layers
from fl_lightning.protocol import NetInputs


def mixes_samples(net: nn.Module, inputs: NetInputs) -> bool:
    """Whether, in train mode, the net's output for a sample or its buffers depend on the rest of the batch.

    True as well if dropout finds the batch in a dimension other than the first: its masks then depend on the batch's size.
    """
    if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.training for layer in net.modules()):
        return True
    changed = tree_map(lambda part: torch.stack([part[0], _another(*part)]), inputs)
    (first, masks), (second, _) = _forward(net, inputs), _forward(net, changed)
    if not all(torch.equal(one, other) for one, other in zip(first, second, strict=True)):
        return True
    one = tree_map(lambda part: part[:1], inputs)
    return bool(masks) and masks != [(2 * size, *rest) for size, *rest in _forward(net, one)[1]]


def can_pad(method: FederatedAlgorithm, net: nn.Module, inputs: NetInputs) -> bool:
    """Whether a batch can be padded: if the net mixes samples, or draws masks for rows that a method adds, padding shows."""
    return not mixes_samples(net, inputs) and not (method.needs.other_samples and draws(net, inputs))


def draws(net: nn.Module, inputs: NetInputs) -> bool:
    """Whether, in train mode, the net draws from a global generator, as dropout does."""
    with _seeded(_device(inputs)) as moved:
        _outputs_and_buffers(net, inputs)
        return moved()


def counts_dropout(net: nn.Module, inputs: NetInputs) -> bool:
    """Whether, in train mode, the net draws masks of a :class:`CountedDropout` and nothing else, in both passes.

    Gradient checkpointing draws them a second time, in the backward pass, where no mode acts: its gradients show it, or it
    misses tensors.
    """
    weights = [weight for weight in net.parameters() if weight.requires_grad]
    if not weights or not draws(net, inputs):
        return False
    device, gradients = _device(inputs), []
    for seed in range(2):
        with _seeded(device, seed) as moved, _counted(device), _buffers_restored(net):
            outputs = net(inputs)
            if moved():
                return False
            try:
                gradients.append(torch.autograd.grad(outputs.sum(), weights, materialize_grads=True))
            except CheckpointError:
                return False
    return all(torch.allclose(*pair, rtol=1e-3) for pair in zip(*gradients, strict=True))


def activation_bytes(net: nn.Module, inputs: NetInputs) -> int:
    """Bytes per sample that a forward pass keeps for the backward pass, in addition to the weights."""
    weights = {weight.untyped_storage().data_ptr() for weight in net.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    device = _device(inputs)
    with _seeded(device), _counted(device), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        outputs = net(inputs)
    return sum(kept.values()) // len(outputs) + outputs[0].numel() * outputs.element_size()


def _another(first: Tensor, second: Tensor) -> Tensor:
    """A sample that differs from the second and that a net takes."""
    if second.is_floating_point():
        noise = torch.randn(second.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return second + noise.to(second)
    return torch.zeros_like(second) if torch.equal(first, second) else first  # indices of an embedding have a largest


def _forward(net: nn.Module, inputs: NetInputs) -> tuple[list[Tensor], list[tuple[int, ...]]]:
    """The first sample's outputs and the buffers after it, and the shapes of dropout's masks; each run draws the same."""
    device = _device(inputs)
    with _seeded(device), _counted(device) as dropout:
        return _outputs_and_buffers(net, inputs), dropout.shapes


@torch.no_grad()
def _outputs_and_buffers(net: nn.Module, inputs: NetInputs) -> list[Tensor]:
    """The first sample's outputs and the buffers after it, which are restored."""
    with _buffers_restored(net):
        return [net(inputs)[0], *(buffer.clone() for buffer in net.buffers())]


@contextmanager
def _buffers_restored(net: nn.Module) -> Iterator[None]:
    before = [buffer.clone() for buffer in net.buffers()]
    yield
    with torch.no_grad():
        for buffer, old in zip(net.buffers(), before, strict=True):
            buffer.copy_(old)


def _device(inputs: NetInputs) -> torch.device:
    return tree_leaves(inputs)[0].device


def _counted(device: torch.device) -> CountedDropout:
    return CountedDropout(torch.zeros((), dtype=torch.int64, device=device))


@contextmanager
def _seeded(device: torch.device, seed: int = 0) -> Iterator[Callable[[], bool]]:
    """The same draws of torch's generator each time; whether there was one by then."""
    state = torch.cuda.get_rng_state if device.type == "cuda" else torch.get_rng_state
    with seeded_layers(seed, -1, -1, "layers", device):
        before = state()
        yield lambda: not torch.equal(state(), before)
