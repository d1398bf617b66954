"""``python -m benchmarks.stacking_limit``: where stacking begins to cost more than it saves, the numbers behind ``auto``.

One round of 20 clients with one step of ``samples`` each, sequential against vectorized, in turn: MLPs of growing width, and
nets with convolutions.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import lightning.pytorch as pl
import torch
from torch import nn

from benchmarks.trainer_settings import trainer_settings
from fl_lightning import FedAvg
from fl_lightning.data import from_arrays
from fl_lightning.engines.engine_choice import ENGINES
from fl_lightning.models import CNN2, MLP, LeNet, ResNet9

_CLIENTS, _FEATURES, _IMAGE, _CLASSES, _ROUNDS = 20, (256,), (3, 32, 32), 10, 7


def main() -> None:
    """Print a table: a row for each net and number of samples."""
    torch.set_num_threads(2)
    print("| net | weights | samples a step | sequential, ms | vectorized, ms | ratio |\n" + "| --- " * 6 + "|")
    for width in (32, 128, 512, 2048):
        for samples in (5, 20, 64):
            _compare(f"MLP, {width} wide", _FEATURES, partial(MLP, hidden=(width,)), samples)
    images = {"CNN2": CNN2, "CNN2, GroupNorm": partial(CNN2, norm_groups=2), "LeNet": LeNet, "ResNet9": ResNet9}
    for name, net in images.items():
        for samples in (1, 2, 5, 10, 20, 64):
            _compare(name, _IMAGE, net, samples)


def _compare(name: str, shape: tuple[int, ...], net: Callable[..., nn.Module], samples: int) -> None:
    generator = torch.Generator().manual_seed(0)
    count = _CLIENTS * samples
    inputs, targets = torch.randn(count, *shape, generator=generator), torch.arange(count) % _CLASSES
    clients = [range(client * samples, (client + 1) * samples) for client in range(_CLIENTS)]
    method = FedAvg(net(shape, _CLASSES))
    trainer = pl.Trainer(max_steps=1, accelerator="cpu", **trainer_settings(analysis=False, folder=""))
    data = from_arrays(inputs, targets, clients, classes=list(map(str, range(_CLASSES))), batch_size=samples)
    trainer.fit(method, datamodule=data)
    engines = {name: ENGINES[name](method, method.engine.context) for name in ("sequential", "vectorized")}
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(_ROUNDS):
        for engine, runs in engines.items():
            start = time.perf_counter()
            runs.rehearse(1, method.cohort(1))
            seconds[engine].append(time.perf_counter() - start)
    sequential, vectorized = (1e3 * statistics.median(of_one) for of_one in seconds.values())
    weights = sum(weight.numel() for weight in method.net.parameters())
    times = f"{sequential:.1f} | {vectorized:.1f} | {vectorized / sequential:.2f}"
    print(f"| {name} | {weights:,} | {samples} | {times} |", flush=True)


if __name__ == "__main__":
    main()
