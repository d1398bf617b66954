"""How much each weight matters to some data."""

from collections import Counter
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, grad, vmap
from torch.nn.grad import conv2d_weight

_GRADIENT_VALUES = 1 << 20  # of single samples that are held at a time: more is no faster
# Libraries of convolutions for processors take channels by eight: other numbers cost several times as much.
_CHANNELS_AT_A_TIME = 8
_Loss = Callable[[Tensor, Tensor], Tensor]


def empirical_fisher(net: nn.Module, loss: _Loss, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Diagonal of the empirical Fisher information: the mean over samples of the squared gradient of a sample's loss.

    Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", PNAS 2017, with the true labels in the place of
    drawn ones. The net is put into evaluation mode meanwhile.

    Args:
        net: whose trainable weights.
        loss: logits (B, C) and targets to one value a sample, (B,).
        batches: inputs (B, ...) and targets, (B,) or, for soft labels, (B, C).

    Returns:
        By name of the trainable weight, in its shape.
    """
    was_training = net.training
    net.eval()
    names = {name for name, weight in net.named_parameters() if weight.requires_grad}
    fisher: dict[str, Tensor] = {}
    count, layers = 0, _plain_layers(net)
    # Under autocast torch.vmap cannot take BatchNorm.
    with torch.autocast(next(net.parameters()).device.type, enabled=False):
        for inputs, targets in batches:
            squares = _squares_of_layers(net, layers, loss, inputs, targets)
            squares |= _squares_of_samples(net, names - squares.keys(), loss, inputs, targets)
            fisher = {name: fisher[name] + total if fisher else total for name, total in squares.items()}
            count += len(targets)
    net.train(was_training)
    return {name: total.div_(count) for name, total in fisher.items()}


def _plain_layers(net: nn.Module) -> dict[str, nn.Linear | nn.Conv2d]:
    """Layers whose gradient of one sample is a product of what they got and their outputs' gradient, weights their own."""
    users = Counter(id(weight) for module in net.modules() for weight in module.parameters(recurse=False))
    return {
        name: layer
        for name, layer in net.named_modules()
        if (type(layer) is nn.Linear or (type(layer) is nn.Conv2d and layer.padding_mode == "zeros"))
        and not isinstance(getattr(layer, "padding", None), str)
        and any(weight.requires_grad for weight in layer.parameters())
        and all(users[id(weight)] == 1 for weight in layer.parameters())
    }


def _squares_of_layers(
    net: nn.Module, layers: dict[str, nn.Linear | nn.Conv2d], loss: _Loss, inputs: Tensor, targets: Tensor
) -> dict[str, Tensor]:
    """Sums over samples of squared gradients of these layers' weights, from one backward pass.

    Layers that are not called exactly once, not on one row a sample, or in vain, are left out.
    """
    calls: dict[str, list[tuple[Tensor, GradientEdge]]] = {name: [] for name in layers}

    def recorder(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def record(layer: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
            # Not the output itself, which what follows may change in place.
            calls[name].append((arguments[0].detach(), get_gradient_edge(output)))

        return record

    handles = [layer.register_forward_hook(recorder(name)) for name, layer in layers.items()]
    try:
        with torch.enable_grad():
            value = loss(net(inputs), targets).sum()
    finally:
        for handle in handles:
            handle.remove()
    once = {name: call[0] for name, call in calls.items() if len(call) == 1 and len(call[0][0]) == len(inputs)}
    if not once:
        return {}
    gradients = torch.autograd.grad(value, [edge for _, edge in once.values()], allow_unused=True)
    squares = {}
    for (name, (received, _)), gradient in zip(once.items(), gradients, strict=True):
        if gradient is None:
            continue
        for own, total in _squares_of_layer(layers[name], received, gradient).items():
            if layers[name].get_parameter(own).requires_grad:
                squares[f"{name}.{own}" if name else own] = total
    return squares


def _squares_of_layer(layer: nn.Linear | nn.Conv2d, received: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    """``sum_i (dL_i/dW)^2`` and the same of the bias.

    Args:
        received: (B, ...), what the layer got.
        gradient: (B, ...), of the summed loss by what it gave.
    """
    if isinstance(layer, nn.Linear) and received.ndim == 2:  # an outer product, whose squares are one too
        squares = {"weight": gradient.square().T @ received.square(), "bias": gradient.square().sum(dim=0)}
    else:
        at_a_time = max(_GRADIENT_VALUES // layer.weight.numel(), 1)
        squares = {
            "weight": sum(
                _weight_gradients(layer, *part).square().sum(dim=0)
                for part in zip(received.split(at_a_time), gradient.split(at_a_time), strict=True)
            ),
            "bias": _at_places(layer, gradient).sum(dim=2).square().sum(dim=0),
        }
    return squares if layer.bias is not None else {"weight": squares["weight"]}


def _weight_gradients(layer: nn.Linear | nn.Conv2d, received: Tensor, gradient: Tensor) -> Tensor:
    """Of every sample by the layer's weight, (B, ...), where each sample has several places (pixels, tokens)."""
    if isinstance(layer, nn.Linear):
        return _at_places(layer, gradient) @ _at_places(layer, received).transpose(1, 2)
    samples, (outputs, inputs, *window) = len(received), layer.weight.shape
    groups = samples * layer.groups  # convolutions that know nothing of each other, side by side
    if inputs % _CHANNELS_AT_A_TIME == 0:
        images, by_outputs = (part.flatten(0, 1)[None] for part in (received, gradient))
        shape, how = (samples * outputs, inputs, *window), (layer.stride, layer.padding, layer.dilation, groups)
        return conv2d_weight(images, shape, by_outputs, *how).unflatten(0, (samples, outputs))
    # What a layer got, convolved with its outputs' gradients, where strides and gaps change places.
    images = received.reshape(groups, inputs, *received.shape[2:]).transpose(0, 1)
    kernels = gradient.reshape(samples * outputs, 1, *gradient.shape[2:])
    products = F.conv2d(images, kernels, None, layer.dilation, layer.padding, layer.stride, groups)
    return products[..., : window[0], : window[1]].unflatten(1, (samples, outputs)).movedim(0, 2)


def _at_places(layer: nn.Linear | nn.Conv2d, values: Tensor) -> Tensor:
    """(B, channels, places)."""
    return values.flatten(2) if isinstance(layer, nn.Conv2d) else values.flatten(1, -2).transpose(1, 2)


def _squares_of_samples(
    net: nn.Module, names: Iterable[str], loss: _Loss, inputs: Tensor, targets: Tensor
) -> dict[str, Tensor]:
    """Sums over samples of squared gradients of any weights, from a gradient for each sample."""
    weights = {name: net.get_parameter(name).detach() for name in sorted(names)}
    if not weights:
        return {}
    others = {name: tensor.detach() for name, tensor in (*net.named_parameters(), *net.named_buffers()) if name not in weights}

    def loss_of_one(weights: dict[str, Tensor], sample: Tensor, target: Tensor) -> Tensor:
        return loss(functional_call(net, {**weights, **others}, (sample[None],)), target[None])[0]

    gradients_of = vmap(grad(loss_of_one), in_dims=(None, 0, 0))
    at_a_time = max(_GRADIENT_VALUES // sum(weight.numel() for weight in weights.values()), 1)
    squares = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for part in zip(inputs.split(at_a_time), targets.split(at_a_time), strict=True):
        for name, gradients in gradients_of(weights, *part).items():
            squares[name] += gradients.square().sum(dim=0)
    return squares
