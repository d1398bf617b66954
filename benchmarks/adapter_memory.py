"""``python -m benchmarks.adapter_memory``: memory and time of a federation that fine-tunes ViT-B/16 or adapters of it.

Each row is a process: two rounds of four clients, two images of 224 x 224 each, one step. Random weights: the memory is that of
pretrained ones.
"""

import logging
import subprocess
import sys
import time

import lightning.pytorch as pl
import torch

from benchmarks.memory import peak_memory_mib, resident_mib
from benchmarks.trainer_settings import trainer_settings
from fl_lightning import FedAvg
from fl_lightning.data import from_arrays
from fl_lightning.models import LoRA, TimmModel

_RUNS = [("all weights", "sequential"), ("LoRA", "sequential"), ("all weights", "vectorized"), ("LoRA", "vectorized")]
_ROUNDS, _CLIENTS, _SAMPLES, _IMAGE, _CLASSES = 2, 4, 2, (3, 224, 224), 10


def main() -> None:
    """Print a table, or with arguments one of its rows."""
    if len(sys.argv) == 3:
        _row(*sys.argv[1:])
        return
    print("| trained | engine | trained, MB | before the fit, MiB | peak in it, MiB | above it, MiB | processor s a round |")
    print("| --- " * 7 + "|")
    for trained, engine in _RUNS:
        subprocess.run([sys.executable, "-m", "benchmarks.adapter_memory", trained, engine], check=True)


def _row(trained: str, engine: str) -> None:
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    count = _CLIENTS * _SAMPLES
    inputs = torch.rand(count, *_IMAGE, generator=torch.Generator().manual_seed(0))
    clients = [range(client * _SAMPLES, (client + 1) * _SAMPLES) for client in range(_CLIENTS)]
    data = from_arrays(inputs, torch.arange(count), clients, classes=list(map(str, range(_CLASSES))), batch_size=None)
    net = TimmModel(_IMAGE, _CLASSES, name="vit_base_patch16_224")
    adapter = LoRA(r=8, target_modules=["qkv"]) if trained == "LoRA" else None
    method = FedAvg(net, adapter=adapter, local_steps=1, engine=engine)
    trainer = pl.Trainer(max_steps=_ROUNDS, accelerator="cpu", **trainer_settings(analysis=False, folder=""))
    before, started = resident_mib(), time.process_time()
    trainer.fit(method, datamodule=data)
    seconds = (time.process_time() - started) / _ROUNDS
    size = sum(weight.numel() for weight in method.net.parameters() if weight.requires_grad) * 4 / 1e6
    peak = peak_memory_mib()
    memory = " | ".join(f"{value:,.0f}" for value in (before, peak, peak - before))
    print(f"| {trained} | {engine} | {size:.1f} | {memory} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
