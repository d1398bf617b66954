"""Weights that consist of a part shared by tasks and a part of each task, for any net of linear and convolutional layers.

J. Yoon, S. Kim, E. Yang, S. J. Hwang: Scalable and Order-robust Continual Learning with Additive Parameter Decomposition.
ICLR 2020. arXiv 1902.09432. Equation 1.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Decomposition(nn.Module):
    """``theta = B * sigmoid(mask) + A``; ``mask`` has one number for each output of the layer.

    Args:
        weight: (outputs, ...), of the layer.
        mask: whether there is a mask; without it B counts fully.
        adaptive: whether there is A.
        num_earlier: earlier tasks with A that continue to be trained, as ``earlier``, (tasks, outputs, ...); not part of theta.
        num_foreign: A of other clients that methods can add; ``attention`` has a number for each.
    """

    def __init__(
        self, weight: Tensor, mask: bool = True, adaptive: bool = True, num_earlier: int = 0, num_foreign: int = 0
    ) -> None:
        super().__init__()
        outputs = len(weight)
        self.mask = nn.Parameter(torch.randn(outputs).to(weight) / math.sqrt(outputs)) if mask else None
        self.adaptive = nn.Parameter(weight.detach() / 3) if adaptive else None
        self.earlier = nn.Parameter(weight.new_zeros(num_earlier, *weight.shape)) if num_earlier > 0 else None
        self.attention = nn.Parameter(weight.new_full((num_foreign,), 1 / num_foreign)) if num_foreign > 0 else None

    def forward(self, base: Tensor) -> Tensor:
        if self.mask is not None:
            base = base * over_outputs(self.mask.sigmoid(), base)
        return base if self.adaptive is None else base + self.adaptive


def decompose(net: nn.Module, leave: str = "classifier", **parts: Any) -> list[str]:
    """Decompose the weights of all linear and convolutional layers in place; returns the layers' names.

    Args:
        leave: part of the net that does not change.
        parts: arguments of :class:`Decomposition`.

    Raises:
        ValueError: if there is no such layer, or two of them share a weight.
    """
    left = set(dict(net.named_modules()).get(leave, nn.Module()).modules())
    layers = {name: layer for name, layer in net.named_modules() if isinstance(layer, _LAYERS) and layer not in left}
    if not layers:
        raise ValueError(f"model.net has no linear or convolutional layer other than {leave}: there is nothing to decompose")
    owners: dict[int, str] = {}
    for name, layer in layers.items():
        first = owners.setdefault(id(layer.weight), name)
        if first != name:
            raise ValueError(
                f"model.net has one weight in the layers {first} and {name}, which would be decomposed twice: give each "
                "layer a weight, or use one layer twice"
            )
    for layer in layers.values():
        parametrize.register_parametrization(layer, "weight", Decomposition(layer.weight, **parts), unsafe=True)
    return list(layers)


def part_name(layer: str, part: str) -> str:
    """Name of a part of a decomposed layer's weight: ``base``, which is B, or one of :class:`Decomposition`."""
    return f"{layer}.parametrizations.weight.original" if part == "base" else f"{layer}.parametrizations.weight.0.{part}"


def over_outputs(values: Tensor, weight: Tensor) -> Tensor:
    """One value an output, (outputs,), in a shape that broadcasts over a weight (outputs, ...)."""
    return values.reshape(-1, *[1] * (weight.ndim - 1))


def threshold(adaptive: Tensor, limit: float) -> Tensor:
    """Set entries to 0 if their size is not above ``limit``."""
    return adaptive.masked_fill(adaptive.abs() <= limit, 0.0)
