"""``python -m benchmarks.memory_formats``: the layers of W1's net with channels first and last, on one thread.

What decides the memory format of images on a processor. Where channels are first, torch's pooling is slow, and
:class:`PoolingByHalves` is measured, too. With ``ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2
MKL_ENABLE_INSTRUCTIONS=AVX2`` the kernels are those of a processor without AVX-512.
"""

from collections.abc import Callable
from statistics import median
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.workloads import load
from fl_lightning.engines.freed_memory import keep_freed_memory

_FORMATS = torch.contiguous_format, torch.channels_last
_REPETITIONS = 25


def main() -> None:
    """Print a table: a row for each pass through each layer, in milliseconds, and the sums."""
    torch.set_num_threads(1)
    keep_freed_memory()
    workload = load("W1")
    images = torch.randn(workload.batch_size, *workload.inputs.shape[1:])
    print("| layer | pass | first, ms | first, pooling by halves, ms | last, ms |\n" + "| --- " * 5 + "|")
    sums = dict.fromkeys(("first", "first, pooling by halves", "last"), 0.0)
    for name, layer in workload.build_net().named_modules():
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            first, last = (_passes(layer.to(memory_format=memory), layer, images, memory) for memory in _FORMATS)
            by_halves = first
            if isinstance(layer, nn.MaxPool2d):
                by_halves = _passes(PoolingByHalves.apply, layer, images, torch.contiguous_format)
            for what in first:
                times = [1e3 * of_one[what] for of_one in (first, by_halves, last)]
                print(f"| {name}, {type(layer).__name__} | {what} | " + " | ".join(f"{value:.2f}" for value in times) + " |")
                for key, value in zip(sums, times, strict=True):
                    sums[key] += value
            images = layer(images).detach()
    print(", ".join(f"{key}: {value:.1f} ms" for key, value in sums.items()))


class PoolingByHalves(torch.autograd.Function):
    """Max pooling 2x2 of images of even height and width with channels first, with the bits of torch's where all is finite.

    The larger of two rows, then of two columns of these; where both are equal, torch takes the one above, then the left one.
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor) -> Tensor:
        above, below = images[..., 0::2, :], images[..., 1::2, :]
        is_below, rows = below > above, torch.maximum(above, below)
        left, right = rows[..., 0::2], rows[..., 1::2]
        is_above_left = is_below[..., 0::2] > is_below[..., 1::2]
        ctx.save_for_backward(is_below, (right > left) | ((right == left) & is_above_left))
        return torch.maximum(left, right)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        is_below, is_right = ctx.saved_tensors
        *sizes, height, width = is_below.shape
        rows, images = gradient.new_empty(is_below.shape), gradient.new_empty(*sizes, 2 * height, width)
        right, below = rows[..., 1::2], images[..., 1::2, :]
        torch.mul(gradient, is_right, out=right)
        torch.sub(gradient, right, out=rows[..., 0::2])
        torch.mul(rows, is_below, out=below)
        torch.sub(rows, below, out=images[..., 0::2, :])
        return images


def _passes(run: Callable[[Tensor], Tensor], layer: nn.Module, images: Tensor, memory: torch.memory_format) -> dict[str, float]:
    """Seconds of ``run`` in place of a layer, and of the backward passes that training takes."""
    images = images.detach().contiguous(memory_format=memory).requires_grad_()
    outputs = run(images)
    gradient = torch.randn_like(outputs)
    seconds = {"forward": _seconds(lambda: run(images))}
    if weights := list(layer.parameters()):
        seconds["backward, weights"] = _seconds(lambda: torch.autograd.grad(outputs, weights, gradient, retain_graph=True))
    if images.shape[1] > 3:  # training does not need the gradient of the images
        seconds["backward, inputs"] = _seconds(lambda: torch.autograd.grad(outputs, images, gradient, retain_graph=True))
    return seconds


def _seconds(run: Callable[[], object]) -> float:
    """Median time of the processor."""
    times = []
    for _ in range(_REPETITIONS):
        start = process_time()
        run()
        times.append(process_time() - start)
    return median(times)


if __name__ == "__main__":
    main()
