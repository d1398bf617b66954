"""What single samples' gradients cost, in gradients of their batch: ``python -m benchmarks.sample_gradients [THREADS]``."""

import sys
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from benchmarks.workloads import load
from fl_lightning.engines.freed_memory import keep_freed_memory
from fl_lightning.functional import empirical_fisher

SAMPLES, AT_A_TIME, REPETITIONS = 100, 25, 7


def batch_gradient(net: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    """The unit."""
    torch.autograd.grad(F.cross_entropy(net(inputs), targets), list(net.parameters()))


def loop(net: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    """One sample after another."""
    weights = list(net.parameters())
    totals = [torch.zeros_like(weight) for weight in weights]
    for sample, target in zip(inputs.split(1), targets.split(1), strict=True):
        gradients = torch.autograd.grad(F.cross_entropy(net(sample), target), weights)
        for total, gradient in zip(totals, gradients, strict=True):
            total.addcmul_(gradient, gradient)


def vmap_of_grad(net: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    """As torch.func has it."""
    weights = {name: weight.detach() for name, weight in net.named_parameters()}

    def loss(weights: dict[str, Tensor], sample: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(net, weights, (sample[None],)), target[None])

    totals = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for part in zip(inputs.split(AT_A_TIME), targets.split(AT_A_TIME), strict=True):
        for name, gradients in vmap(grad(loss), in_dims=(None, 0, 0))(weights, *part).items():
            totals[name] += gradients.square().sum(dim=0)


def ours(net: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    """FedCurv's."""
    empirical_fisher(net, lambda logits, labels: F.cross_entropy(logits, labels, reduction="none"), [(inputs, targets)])


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    keep_freed_memory()
    workload = load("methods")
    net, inputs, targets = workload.build_net(), workload.normalised_inputs()[:SAMPLES], workload.targets[:SAMPLES]
    seconds: dict[str, list[float]] = {}
    for _ in range(REPETITIONS):
        for variant in (batch_gradient, loop, vmap_of_grad, ours):
            start = perf_counter()
            variant(net, inputs, targets)
            seconds.setdefault(variant.__name__, []).append(perf_counter() - start)
    medians = {name: median(values) for name, values in seconds.items()}
    for name, value in medians.items():
        print(f"{name}: {1e3 * value:.1f} ms, {value / medians['batch_gradient']:.2f}")
