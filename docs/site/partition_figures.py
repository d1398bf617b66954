"""Draw the partitions of docs/data.md: ``python docs/site/partition_figures.py OUT_FOLDER``. Needs no dataset, only labels."""

import sys
from io import BytesIO
from pathlib import Path

import torch
from matplotlib import rcParams
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from fl_lightning.callbacks.figures import label_map, share_bars
from fl_lightning.data import IID, Classes, Dirichlet, DirichletByClass, Partition, PowerLaw, Shards

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
LABELS = torch.arange(10).repeat_interleave(5000)  # as many of each class as CIFAR-10 has
SEED = 0


def label_counts(partition: Partition, num_clients: int) -> Tensor:
    """(N, C) samples of each class at each client."""
    return torch.stack([LABELS[part].bincount(minlength=10) for part in partition(LABELS, num_clients, SEED)])


def first_clients(partitions: list[Partition]) -> Figure:
    """The first ten of 100 clients under six partitions."""
    figure = Figure(figsize=(13, 7), layout="constrained")
    for axes, partition in zip(figure.subplots(2, 3).flat, partitions, strict=True):
        counts = label_counts(partition, 100)[:10]
        share_bars(axes, counts, [f"{client} ({row.sum():,})" for client, row in enumerate(counts)], CLASSES, repr(partition))
        axes.title.set_size("medium")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=10)
    figure.suptitle("10 of 100 clients (in brackets: samples)")
    return figure


def save_figures(out: Path) -> list[Path]:
    """Write every picture; returns the paths."""
    rcParams["figure.figsize"] = (10, 6)
    six = [IID(), Dirichlet(0.1), DirichletByClass(0.1), Shards(2), Classes(2), PowerLaw(2)]
    figures = {
        "partition_bars": first_clients(six),
        "partition_dirichlet": label_map(label_counts(Dirichlet(0.1), 100), CLASSES, "Dirichlet(alpha=0.1)"),
        "partition_power_law": label_map(label_counts(PowerLaw(), 5000), CLASSES, repr(PowerLaw())),
    }
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        drawn = BytesIO()
        figure.savefig(drawn, dpi=80)
        Image.open(drawn).convert("RGB").quantize(128).save(path, optimize=True)
    return paths


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/site/partition_figures.py OUT_FOLDER")
    for written in save_figures(Path(sys.argv[1])):
        print(written)
