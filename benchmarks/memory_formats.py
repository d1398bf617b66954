"""``python -m benchmarks.memory_formats``: the layers of W1's net with channels first and last, on one thread.

What decides the memory format of images on a processor. With ``ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2
MKL_ENABLE_INSTRUCTIONS=AVX2`` the kernels are those of a processor without AVX-512.
"""

from collections.abc import Callable
from statistics import median
from time import process_time

import torch
from torch import Tensor, nn

from benchmarks.workloads import load
from fl_lightning.engines.freed_memory import keep_freed_memory

_FORMATS = {"first": torch.contiguous_format, "last": torch.channels_last}
_REPETITIONS = 25


def main() -> None:
    """Print a table: a row for each pass through each layer, in milliseconds, and the sums."""
    torch.set_num_threads(1)
    keep_freed_memory()
    workload = load("W1")
    images = torch.randn(workload.batch_size, *workload.inputs.shape[1:])
    print("| layer | pass | first, ms | last, ms |\n" + "| --- " * 4 + "|")
    sums = dict.fromkeys((*_FORMATS, "best"), 0.0)
    for name, layer in workload.build_net().named_modules():
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            passes = [_passes(layer, images, _FORMATS[key]) for key in _FORMATS]
            for what in passes[0]:
                times = [1e3 * of_one[what] for of_one in passes]
                print(f"| {name}, {type(layer).__name__} | {what} | {times[0]:.2f} | {times[1]:.2f} |")
                for key, value in zip(sums, (*times, min(times)), strict=True):
                    sums[key] += value
            images = layer(images).detach()
    print(", ".join(f"{key}: {value:.1f} ms" for key, value in sums.items()))


def _passes(layer: nn.Module, images: Tensor, memory: torch.memory_format) -> dict[str, float]:
    """Seconds of a forward pass, and of the backward passes that training takes."""
    images = images.detach().contiguous(memory_format=memory).requires_grad_()
    layer = layer.to(memory_format=memory)
    outputs = layer(images)
    gradient = torch.randn_like(outputs)
    seconds = {"forward": _seconds(lambda: layer(images))}
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
