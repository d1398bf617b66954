"""The run of cifar10_tce.yaml on one GPU, on random images of CIFAR-10's shape: how long do its 4,000 rounds take?

Its arithmetic is that of the full runs, ``python -m studies headline``: precision, TF32 and cuDNN as there.
"""

from argparse import Namespace
from functools import partial
from tempfile import TemporaryDirectory
from time import perf_counter

import lightning.pytorch as pl
import torch

from benchmarks.measurements import Table
from benchmarks.trainer_settings import trainer_settings
from benchmarks.workloads import random_images, random_labels
from fl_lightning import FedAvg, FederatedDataModule
from fl_lightning.data import Arrays, Dirichlet, RandomCrop, RandomHorizontalFlip
from fl_lightning.losses import TruncatedCrossEntropy
from fl_lightning.models import ResNet18
from fl_lightning.trainer import choose_arithmetic
from studies.declared.headline import PRECISION

_ROUNDS = 4_000
_TRAINING_SAMPLES, _TEST_SAMPLES = 50_000, 10_000


class Clock(pl.Callback):
    """Times the rounds: the first, in which kernels are chosen and perhaps compiled, apart from the others."""

    def on_train_start(self, trainer: pl.Trainer, module: FedAvg) -> None:
        self.start = perf_counter()

    def on_train_batch_end(self, trainer: pl.Trainer, module: FedAvg, outputs: None, batch: int, batch_idx: int) -> None:
        if trainer.global_step == 1:
            torch.cuda.synchronize()
            self.after_first = perf_counter()

    def on_train_end(self, trainer: pl.Trainer, module: FedAvg) -> None:
        torch.cuda.synchronize()
        self.end = perf_counter()
        self.rounds = trainer.global_step


def federation() -> FederatedDataModule:
    """CIFAR-10's shape, partitioned and augmented as in the config."""
    source = Arrays(
        random_images(_TRAINING_SAMPLES),
        random_labels(_TRAINING_SAMPLES),
        random_images(_TEST_SAMPLES, seed=1),
        random_labels(_TEST_SAMPLES, seed=1),
    )
    return FederatedDataModule(
        source,
        num_clients=100,
        clients_per_round=10,
        batch_size=64,
        partition=Dirichlet(alpha=0.1),
        augment=[RandomCrop(padding=4), RandomHorizontalFlip()],
        mean=[0.4914, 0.4822, 0.4465],
        std=[0.2023, 0.1994, 0.2010],
    )


def run_on_gpu(options: Namespace) -> Table:
    """One run; with ``--analysis`` it is also validated, tested, watched and logged as in the config."""
    method = FedAvg(
        partial(ResNet18, norm="group"),
        loss=TruncatedCrossEntropy(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.03, weight_decay=1e-4),
        local_steps=3,
        engine=options.engine,
    )
    clock, device = Clock(), {"accelerator": "cuda", "devices": 1, "precision": PRECISION}
    choose_arithmetic("high", benchmark=None, deterministic=False)
    torch.cuda.empty_cache()  # of a run before it
    torch.cuda.reset_peak_memory_stats()
    with TemporaryDirectory() as folder:
        settings = trainer_settings(options.analysis, folder)
        settings["callbacks"].append(clock)
        trainer = pl.Trainer(max_steps=options.rounds or _ROUNDS, **settings, **device)
        trainer.fit(method, datamodule=federation())
    rest = (clock.end - clock.after_first) / max(clock.rounds - 1, 1)
    row = {
        "device": torch.cuda.get_device_name(),
        "rounds": clock.rounds,
        "s in all": clock.end - clock.start,
        "s of round 1": clock.after_first - clock.start,
        "ms a round after it": 1e3 * rest,
        "peak device MiB": torch.cuda.max_memory_allocated() / 2**20,
    }
    watched = "with" if options.analysis else "without"
    notes = [f"{PRECISION}, engine {options.engine}, {watched} evaluation and callbacks."]
    return Table("cifar10_tce.yaml on a GPU", [row], notes)
