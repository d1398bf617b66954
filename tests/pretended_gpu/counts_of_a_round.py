"""Launches, copies and waits of one round of the shape of cifar10_tce.yaml, by engine, counted on the pretended GPU.

``python tests/pretended_gpu/counts_of_a_round.py``; with ``--lines`` also the lines that launch most. ResNet-18, ten clients of
three steps; sizes of batches and images, which are small here, do not matter. A captured visit is one launch.
"""

import io
import logging
import sys
import warnings
from contextlib import redirect_stdout
from functools import partial

import lightning.pytorch as pl
import torch
from pretended import Counts, counting, pretended_gpu

from fl_lightning import FedAvg
from fl_lightning.data import Arrays, Dirichlet, FederatedDataModule, RandomCrop, RandomHorizontalFlip
from fl_lightning.losses import TruncatedCrossEntropy
from fl_lightning.models import ResNet18

RUNS = [
    ("sequential", "group", "32-true"),
    ("sequential", "group", "bf16-mixed"),
    ("sequential", "batch", "32-true"),
    ("captured", "group", "32-true"),
    ("vectorized", "group", "32-true"),
]


class LastRound(pl.Callback):
    """Counts a round with all that a fit does around it, but for evaluation."""

    counts: Counts

    def on_train_batch_start(self, *_: object) -> None:
        self._block = counting()
        self.counts = self._block.__enter__()

    def on_train_batch_end(self, *_: object) -> None:
        self._block.__exit__(None, None, None)


def federation() -> FederatedDataModule:
    generator = torch.Generator().manual_seed(0)

    def images(count: int) -> torch.Tensor:
        return torch.randint(0, 256, (count, 3, 17, 17), dtype=torch.uint8, generator=generator)

    return FederatedDataModule(
        Arrays(images(1000), torch.arange(1000) % 10, images(20), torch.arange(20) % 10),
        num_clients=20,
        clients_per_round=10,
        batch_size=2,
        partition=Dirichlet(alpha=10.0),
        augment=[RandomCrop(padding=4), RandomHorizontalFlip()],
        mean=[0.4914, 0.4822, 0.4465],
        std=[0.2023, 0.1994, 0.2010],
        monitor_test=0,
    )


def count(engine: str, norm: str, precision: str) -> Counts:
    """Of the second round of a fit."""
    watch = LastRound()
    with pretended_gpu():
        method = FedAvg(
            partial(ResNet18, norm=norm),
            loss=TruncatedCrossEntropy(),
            optimizer=lambda weights: torch.optim.SGD(weights, lr=0.03, weight_decay=1e-4),
            local_steps=3,
            engine=engine,
        )
        trainer = pl.Trainer(
            max_steps=2,
            max_epochs=-1,
            accelerator="gpu",
            devices=1,
            precision=precision,
            callbacks=[watch],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
        )
        with redirect_stdout(io.StringIO()):
            trainer.fit(method, datamodule=federation())
    return watch.counts


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print("| engine | norm | precision | launches | copies | waits |\n| --- | --- | --- | --- | --- | --- |")
    for run in RUNS:
        counts = count(*run)
        numbers = (f"{part.total():,}" for part in (counts.launches, counts.copies, counts.waits))
        print(f"| {' | '.join(run)} | {' | '.join(numbers)} |", flush=True)
        for line, launches in counts.busiest_lines(12 if "--lines" in sys.argv else 0):
            print(f"    {launches:6,} at {line}", flush=True)
