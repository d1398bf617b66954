"""The importance of each weight for some data."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import grad, vmap
from torch.nn.grad import conv2d_weight
from torch.utils._pytree import tree_map

from fl_lightning.functional.stateless import call_with, tensor_slots, tensors_of

_GRADIENT_VALUES = 1 << 20  # of single samples that are held at a time: enough to fill a call
# CPU libraries of convolutions process channels by eight; other numbers leave part of that idle.
_CHANNELS_AT_A_TIME = 8
_Inputs = Any  # a tensor (B, ...), or a dict or tuple of such
_More = tuple[Any, ...]
_Loss = Callable[[Tensor, Tensor], Tensor]
_Layers = dict[str, nn.Linear | nn.Conv2d]


def empirical_fisher(net: nn.Module, loss: _Loss, batches: Iterable[tuple[_Inputs, Tensor, *_More]]) -> dict[str, Tensor]:
    """Diagonal of the empirical Fisher information: the mean over samples of the squared gradient of a sample's loss.

    Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", PNAS 2017, with the true labels instead of
    drawn ones. The net is in evaluation mode meanwhile.

    Args:
        net: the net with the trainable weights.
        loss: maps logits (B, C) and targets to one value per sample, (B,).
        batches: inputs (B, ...), or a dict or tuple of such, and targets, (B,) or, for soft labels, (B, C); the rest of a batch
            has no effect.

    Returns:
        By name of the trainable weight, in its shape, in the order of ``net.named_parameters()``.

    Example::

        >>> net = nn.Linear(2, 1, bias=False)
        >>> def loss(outputs, targets):
        ...     return outputs[:, 0]  # whose gradient is the inputs
        >>> # (1 + 9) / 2, (4 + 16) / 2
        >>> empirical_fisher(
        ...     net, loss, [(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.zeros(2))]
        ... )
        {'weight': tensor([[ 5., 10.]])}
    """
    was_training = net.training
    net.eval()
    names = [name for name, weight in net.named_parameters() if weight.requires_grad]
    fisher: dict[str, Tensor] = {}
    count, layers = 0, None
    # Under autocast torch.vmap cannot take BatchNorm.
    with torch.autocast(next(net.parameters()).device.type, enabled=False):
        for inputs, targets, *_ in batches:
            if layers is None:
                layers = _called_once(net, _plain_layers(net), _rows(inputs, slice(1)))
            squares = _squares_of_layers(net, layers, loss, inputs, targets)
            squares |= _squares_of_samples(net, names - squares.keys(), loss, inputs, targets)
            fisher = {name: fisher[name] + squares[name] if fisher else squares[name] for name in names}
            count += len(targets)
    net.train(was_training)
    return {name: total.div_(count) for name, total in fisher.items()}


def _plain_layers(net: nn.Module) -> _Layers:
    """Layers with a gradient per sample that is a product of their inputs and their outputs' gradient."""
    return {
        name: layer
        for name, layer in net.named_modules()
        if (type(layer) is nn.Linear or (type(layer) is nn.Conv2d and layer.padding_mode == "zeros"))
        and not isinstance(getattr(layer, "padding", None), str)
        and {weight for weight, _ in layer.named_parameters(recurse=False)} in ({"weight"}, {"weight", "bias"})
        and any(weight.requires_grad for weight in layer.parameters())
    }


class _Call(NamedTuple):
    """Of a layer."""

    received: Tensor
    given: GradientEdge


@contextmanager
def _recorded(layers: _Layers) -> Iterator[dict[str, list[_Call]]]:
    """Calls of these layers that have a gradient, by the layer's name, while the block lasts."""
    calls: dict[str, list[_Call]] = {name: [] for name in layers}

    def recorder(name: str) -> Callable[..., None]:
        def record(layer: nn.Module, arguments: tuple[Tensor, ...], named: dict[str, Tensor], output: Tensor) -> None:
            if output.requires_grad:
                # Not the output itself, which later operations can change in place.
                calls[name].append(_Call((*arguments, *named.values())[0].detach(), get_gradient_edge(output)))

        return record

    handles = [layer.register_forward_hook(recorder(name), with_kwargs=True) for name, layer in layers.items()]
    try:
        with torch.enable_grad():
            yield calls
    finally:
        for handle in handles:
            handle.remove()


def _rows(inputs: _Inputs, some: int | slice) -> _Inputs:
    return tree_map(lambda tensor: tensor[some], inputs)


def _called_once(net: nn.Module, layers: _Layers, one: _Inputs) -> _Layers:
    """The layers that a single sample, (1, ...), passes once and as a single row.

    If it is several rows, such as tokens, the same number of samples would look like one row per sample.
    """
    with _recorded(layers) as calls:
        net(one)
    return {name: layers[name] for name, made in calls.items() if [len(call.received) for call in made] == [1]}


def _squares_of_layers(net: nn.Module, layers: _Layers, loss: _Loss, inputs: _Inputs, targets: Tensor) -> dict[str, Tensor]:
    """Sums over samples of squared gradients of these layers' weights, from one backward pass.

    Layers that are called several times, not on one row per sample, or without effect are left out, and so are layers that
    share their weights with other uses.
    """
    with _recorded(layers) as calls:
        value = loss(net(inputs), targets).sum()
    uses = _num_uses(value)
    once = {
        name: call[0]
        for name, call in calls.items()
        if len(call) == 1
        and len(call[0].received) == len(targets)
        and all(uses[id(weight)] == 1 for weight in layers[name].parameters() if weight.requires_grad)
    }
    if not once:
        return {}
    gradients = torch.autograd.grad(value, [call.given for call in once.values()], allow_unused=True)
    squares: dict[str, Tensor] = {}
    for (name, call), gradient in zip(once.items(), gradients, strict=True):
        if gradient is None:
            continue
        for weight, total in _squares_of_layer(layers[name], call.received, gradient).items():
            if layers[name].get_parameter(weight).requires_grad:
                squares[f"{name}.{weight}" if name else weight] = total
    return squares


def _num_uses(value: Tensor) -> Counter[int]:
    """The number of operations that use each weight, by its ``id``, to compute a value."""
    uses: Counter[int] = Counter()
    seen, left = {value.grad_fn}, [value.grad_fn] if value.grad_fn is not None else []
    while left:
        for node, _ in left.pop().next_functions:
            if node is None:
                continue
            if (weight := getattr(node, "variable", None)) is not None:
                uses[id(weight)] += 1
            elif node not in seen:
                seen.add(node)
                left.append(node)
    return uses


def _squares_of_layer(layer: nn.Linear | nn.Conv2d, received: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    """``sum_i (dL_i/dW)^2`` and the same of the bias.

    Args:
        received: (B, ...), what the layer got.
        gradient: (B, ...), of the summed loss by what it gave.
    """
    if isinstance(layer, nn.Linear) and received.ndim == 2:  # an outer product; its squares are one too
        squares = {"weight": gradient.square().T @ received.square(), "bias": gradient.square().sum(dim=0)}
    else:
        at_a_time = max(_GRADIENT_VALUES // layer.weight.numel(), 1)
        parts = zip(received.split(at_a_time), gradient.split(at_a_time), strict=True)
        squares = {
            "weight": sum(
                (_weight_gradients(layer, *part).square().sum(dim=0) for part in parts), start=gradient.new_zeros(())
            ),
            "bias": _at_positions(layer, gradient).sum(dim=2).square().sum(dim=0),
        }
    return squares if layer.bias is not None else {"weight": squares["weight"]}


def _weight_gradients(layer: nn.Linear | nn.Conv2d, received: Tensor, gradient: Tensor) -> Tensor:
    """Of every sample by the layer's weight, (B, ...), where each sample has several positions (pixels, tokens)."""
    if isinstance(layer, nn.Linear):
        return _at_positions(layer, gradient) @ _at_positions(layer, received).transpose(1, 2)
    samples, (outputs, inputs, *window) = len(received), layer.weight.shape
    groups = samples * layer.groups  # independent convolutions, side by side
    if inputs % _CHANNELS_AT_A_TIME == 0:
        images, by_outputs = (part.flatten(0, 1)[None] for part in (received, gradient))
        shape = (samples * outputs, inputs, *window)
        how: list[Any] = [layer.stride, layer.padding, layer.dilation, groups]  # torch's defaults are taken as types
        return conv2d_weight(images, shape, by_outputs, *how).unflatten(0, (samples, outputs))
    # The layer's inputs convolved with its outputs' gradients, where strides and gaps swap roles.
    images = received.reshape(groups, inputs, *received.shape[2:]).transpose(0, 1)
    kernels = gradient.reshape(samples * outputs, 1, *gradient.shape[2:])
    products = F.conv2d(images, kernels, None, layer.dilation, layer.padding, layer.stride, groups)
    return products[..., : window[0], : window[1]].unflatten(1, (samples, outputs)).movedim(0, 2)


def _at_positions(layer: nn.Linear | nn.Conv2d, values: Tensor) -> Tensor:
    """(B, channels, positions)."""
    return values.flatten(2) if isinstance(layer, nn.Conv2d) else values.flatten(1, -2).transpose(1, 2)


def _squares_of_samples(
    net: nn.Module, names: Iterable[str], loss: _Loss, inputs: _Inputs, targets: Tensor
) -> dict[str, Tensor]:
    """Sums over samples of squared gradients of any weights, from a gradient for each sample."""
    tensors = tensors_of(net)
    weights = {name: tensors.pop(name) for name in sorted(names)}
    if not weights:
        return {}
    slots = tensor_slots(net)

    def loss_of_one(weights: dict[str, Tensor], sample: Any, target: Tensor) -> Tensor:
        batch = tree_map(lambda part: part[None], sample)
        return loss(call_with(net, slots, {**weights, **tensors}, (batch,)), target[None])[0]

    squares = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    at_a_time = max(_GRADIENT_VALUES // sum(weight.numel() for weight in weights.values()), 1)
    for first in range(0, len(targets), at_a_time):
        part = slice(first, first + at_a_time)
        for name, gradients in _gradients(loss_of_one, weights, _rows(inputs, part), targets[part]).items():
            squares[name] += gradients.square().sum(dim=0)
    return squares


def _gradients(
    loss_of_one: Callable[..., Tensor], weights: dict[str, Tensor], inputs: _Inputs, targets: Tensor
) -> dict[str, Tensor]:
    """Gradients of samples, stacked; one after another where the net decides by values or, as an RNN, works in place."""
    gradient = grad(loss_of_one)
    try:
        return vmap(gradient, in_dims=(None, 0, 0))(weights, inputs, targets)
    except RuntimeError:  # of such a net; a net that fails by itself fails again
        single = [gradient(weights, _rows(inputs, row), target) for row, target in enumerate(targets)]
        return {name: torch.stack([one[name] for one in single]) for name in weights}
