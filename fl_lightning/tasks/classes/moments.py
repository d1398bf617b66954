"""The moments of a batch at the BatchNorm layers of a net, and the layers' running ones."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn


class Moments(NamedTuple):
    """Of a layer's inputs in a batch, and the running ones, (channels,) each; variances are without Bessel's correction."""

    mean: Tensor
    variance: Tensor
    running_mean: Tensor
    running_variance: Tensor


def forward_with_moments(net: nn.Module, forward: Callable[[], Tensor]) -> tuple[Tensor, list[Moments]]:
    """What ``forward`` gives, and the moments of each BatchNorm layer that keeps running statistics, in order; with gradient.

    Args:
        forward: runs the net once.
    """
    received: list[tuple[nn.Module, Tensor]] = []
    hooks = [
        layer.register_forward_pre_hook(lambda layer, inputs: received.append((layer, inputs[0])))
        for layer in net.modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats
    ]
    outputs = forward()
    for hook in hooks:
        hook.remove()
    return outputs, [_moments(layer, values) for layer, values in received]


def _moments(layer: nn.Module, inputs: Tensor) -> Moments:
    over = [dim for dim in range(inputs.ndim) if dim != 1]
    running = (layer.get_buffer(name) for name in ("running_mean", "running_var"))
    return Moments(inputs.mean(dim=over), inputs.var(dim=over, correction=0), *running)
