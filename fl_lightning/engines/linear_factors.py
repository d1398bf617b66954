"""Local steps of large linear layers in one matrix product, for plain SGD.

The gradient of such a layer is a product of two thin matrices: the outputs' gradients, transposed, and the inputs. With few
samples, a step takes most of its time to write this product, read it, and write the weight. If nothing reads the gradient, the
product is added to the weight at once, which rounds differently from a step with the gradient.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_lightning.algorithm import FederatedAlgorithm, LocalTraining
from fl_lightning.engines.run_context import RunContext
from fl_lightning.protocol import Learner, mean_gradient
from fl_lightning.protocol.hooks import overridden

_LEAST = 1 << 18  # weights of a layer: a megabyte, as smaller ones stay in the processor's cache
# With so few samples, the product in blocks of so many rows has the same bits, in half of the time on an EPYC with AVX2.
_FEW, _ROWS = 8, 8


class LinearFactors:
    """The gradients of a net's large linear layers in a local step, as two factors.

    Args:
        net: gets the layers' forward passes replaced.
        trained: its weights that are trained, by name.
    """

    def __init__(self, net: nn.Module, trained: Collection[str]) -> None:
        self.is_open = False
        self._factors: list[tuple[str, Tensor, Tensor]] = []
        self._weights: dict[str, Tensor] = {}
        for name, layer in net.named_modules():
            if type(layer) is nn.Linear and layer.weight.numel() >= _LEAST and f"{name}.weight" in trained:
                self._weights[f"{name}.weight"] = layer.weight
                layer.forward = partial(self._forward, layer, f"{name}.weight")  # pyright: ignore[reportAttributeAccessIssue]

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Keep the factors in the block, in which autograd finds no gradient of these weights, or only that of other uses."""
        self.is_open = len(self._weights) > 0
        try:
            yield
        finally:
            self.is_open = False
            self._factors.clear()

    def add(self, optimizer: torch.optim.Optimizer, resting: Collection[str]) -> None:
        """Add the products, times the rates, to the weights that do not rest."""
        rates = {weight: group["lr"] for group in optimizer.param_groups for weight in group["params"]}
        with torch.no_grad():
            for name, output_gradients, inputs in self._factors:
                if name not in resting:
                    weight = self._weights[name]
                    _add_product(weight, output_gradients.t(), inputs, -rates[weight])

    def _forward(self, layer: nn.Linear, name: str, inputs: Tensor) -> Tensor:
        if not self.is_open or inputs.ndim != 2:
            return F.linear(inputs, layer.weight, layer.bias)
        return _Linear.apply(inputs, layer.weight, layer.bias, lambda *factors: self._factors.append((name, *factors)))


class _Linear(torch.autograd.Function):
    """A linear layer that gives away the factors of its weight's gradient."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, keep: Callable[[Tensor, Tensor], None]
    ) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.keep, ctx.has_bias = keep, bias is not None
        return F.linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, output_gradients: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        inputs, weight = ctx.saved_tensors
        ctx.keep(output_gradients, inputs)
        of_inputs = output_gradients @ weight if ctx.needs_input_grad[0] else None
        return of_inputs, None, output_gradients.sum(dim=0) if ctx.has_bias else None, None


def _add_product(weight: Tensor, left: Tensor, right: Tensor, factor: float) -> None:
    """Add ``factor * left @ right`` to the weight in place."""
    if len(right) > _FEW or len(left) % _ROWS:
        weight.addmm_(left, right, alpha=factor)
    else:
        blocks, of_blocks = weight.unflatten(0, (-1, _ROWS)), left.unflatten(0, (-1, _ROWS))
        blocks.baddbmm_(of_blocks, right.expand(len(blocks), -1, -1), alpha=factor)


def steps_by_factors(method: FederatedAlgorithm, context: RunContext, optimizer: torch.optim.Optimizer) -> bool:
    """Whether a local step is the rate times the gradient, which nothing else reads: on a processor and in float32, FedAvg's
    step with SGD, without momentum and weight decay."""
    own = overridden(method, LocalTraining.client_step, LocalTraining.client_gradients, LocalTraining.client_loss)
    if own or type(method.tasks) is not Learner or context.protection.estimate is not mean_gradient:
        return False
    if method.clip_local_gradients is not None or method.micro_batch_size is not None or context.device.type != "cpu":
        return False
    with context.precision():
        if torch.is_autocast_enabled("cpu") or any(weight.dtype != torch.float32 for weight in method.net.parameters()):
            return False
    more = ("momentum", "weight_decay", "maximize")
    return type(optimizer) is torch.optim.SGD and not any(group[name] for group in optimizer.param_groups for name in more)
