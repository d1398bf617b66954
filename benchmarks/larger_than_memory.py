"""Rounds on GIB of decoded images, which memory need not hold: ``python -m benchmarks.larger_than_memory GIB``."""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from time import perf_counter, sleep

import lightning.pytorch as pl
import numpy as np
from PIL import Image
from torch import nn

from benchmarks.memory import anonymous_mib, peak_memory_mib
from benchmarks.trainer_settings import trainer_settings
from fl_lightning import FedAvg
from fl_lightning.data import IID, FederatedDataModule, ImageFolder, RandomHorizontalFlip


def main() -> None:
    """Decode, train 20 rounds of 10 clients with 100 images, and print seconds and the most memory that was held."""
    clients, ends, held = int(float(sys.argv[1]) * 2**30 / (100 * 3 * 224**2)), [], []
    Thread(target=_watch, args=(held,), daemon=True).start()
    settings = {"partition": IID(), "val_fraction": 0.0, "batch_size": 20, "augment": [RandomHorizontalFlip()]}
    with TemporaryDirectory() as folder:
        os.environ["FL_LIGHTNING_CACHE"] = f"{folder}/cache"
        _link_images(Path(folder, "images"), 100 * clients)
        start = perf_counter()
        data = FederatedDataModule(ImageFolder(), f"{folder}/images", clients, storage="stream", **settings)
        data.setup()
        print(f"{len(data.train_set):,} images decoded and measured in {perf_counter() - start:.0f} s", flush=True)
        method = FedAvg(nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * 28**2, 10)))
        timer = pl.callbacks.LambdaCallback(on_train_batch_end=lambda *_: ends.append(perf_counter()))
        common = trainer_settings(analysis=False, folder=folder) | {"callbacks": [timer], "accelerator": "cpu"}
        pl.Trainer(max_steps=20, **common).fit(method, datamodule=data)
    print(f"{np.median(np.diff(ends)):.2f} s a round; at most {max(held):,.0f} MiB held, {peak_memory_mib():,.0f} with files")


def _link_images(root: Path, count: int) -> None:
    """A thousand JPEG files of 224x224 pixels, each many times by hard links."""
    for i in range(count):
        path, first = (root / f"{n % 10}" / f"{n:07}.jpg" for n in (i, i % 1000))
        if path == first:
            path.parent.mkdir(parents=True, exist_ok=True)
            noise = np.random.default_rng(i).integers(0, 256, (28, 28, 3), dtype=np.uint8)
            Image.fromarray(noise).resize((224, 224)).save(path)
        else:
            os.link(first, path)


def _watch(held: list[float]) -> None:
    while True:
        held.append(anonymous_mib())
        sleep(0.1)


if __name__ == "__main__":
    main()
