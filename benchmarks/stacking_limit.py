"""``python -m benchmarks.stacking_limit``: where stacking begins to cost more than it saves, the number behind ``auto``.

One round of 20 clients with one step of ``samples`` each on an MLP of growing width, sequential against vectorized, in turn.
"""

import statistics
import time

import lightning.pytorch as pl
import torch

from fl_lightning import FedAvg
from fl_lightning.data import from_arrays
from fl_lightning.engines.engine_choice import ENGINES
from fl_lightning.models import MLP

_CLIENTS, _FEATURES, _ROUNDS = 20, 256, 7


def main() -> None:
    """Print a table: a row for each width and number of samples."""
    torch.set_num_threads(2)
    print("| weights | samples a step | weights x samples | sequential, ms | vectorized, ms | ratio |\n" + "| --- " * 6 + "|")
    for samples in (5, 20, 64):
        for width in (32, 128, 512, 2048):
            _compare(width, samples)


def _compare(width: int, samples: int) -> None:
    generator = torch.Generator().manual_seed(0)
    count = _CLIENTS * samples
    inputs, targets = torch.randn(count, _FEATURES, generator=generator), torch.arange(count) % 10
    clients = [range(client * samples, (client + 1) * samples) for client in range(_CLIENTS)]
    method = FedAvg(MLP((_FEATURES,), 10, hidden=(width,)))
    trainer = pl.Trainer(max_steps=1, max_epochs=-1, accelerator="cpu", logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    trainer.fit(method, datamodule=from_arrays(inputs, targets, clients, batch_size=samples))
    engines = {name: ENGINES[name](method, method.engine.context) for name in ("sequential", "vectorized")}
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(_ROUNDS):
        for name, engine in engines.items():
            start = time.perf_counter()
            engine.rehearse(1, method.cohort(1))
            seconds[name].append(time.perf_counter() - start)
    sequential, vectorized = (1e3 * statistics.median(samples) for samples in seconds.values())
    weights = sum(weight.numel() for weight in method.net.parameters())
    row = f"{weights:,} | {samples} | {weights * samples:,} | {sequential:.1f} | {vectorized:.1f}"
    print(f"| {row} | {vectorized / sequential:.2f} |", flush=True)


if __name__ == "__main__":
    main()
