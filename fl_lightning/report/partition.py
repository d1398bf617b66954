"""``fl-lightning partition``: who holds which samples, as a file, a picture and a table, before anything is trained."""

from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fl_lightning.callbacks.figures import partition_picture
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.partition_file import write_partition
from fl_lightning.functional import Heterogeneity, heterogeneity
from fl_lightning.state.atomic_files import atomic_write


def report_partition(data: FederatedDataModule, out: Path) -> None:
    """Partition the data as a run would, write the partition and its picture, print the statistics and where the files lie.

    Raises:
        FileNotFoundError, ValueError: as ``data.setup()``; if ``out`` does not end in .json.
        OSError: if a file cannot be written.
    """
    if out.suffix != ".json":
        raise ValueError(f"out is {out}, must end in .json: the picture is drawn next to it")
    if data.tasks is not None:
        raise ValueError(f"data.tasks is {data.tasks!r}, but this command shows data.partition: leave data.tasks out")
    dataset = data.source.load(data.root)
    private, _ = data.split.private_and_public(dataset)
    targets, objective, seed = dataset.train.targets, dataset.objective, data.seed
    labels = objective.strata(targets)
    labels = torch.zeros(len(targets), dtype=torch.int64) if labels is None else labels
    parts = data.split.parts(dataset, private)
    data.split.cut(dataset, parts, data.val_fraction, data.test_fraction)  # refuses what a fit refuses
    settings = {"classes": dataset.classes, "partition": repr(data.partition), "seed": seed}
    write_partition(out, parts, labels, **settings)
    counts = torch.stack([objective.count_units(targets[part], len(dataset.classes)) for part in parts])
    sizes = torch.tensor([len(part) for part in parts])  # a sample can have several labels or tokens
    title = f"{data.partition!r}, seed {seed}"
    picture = out.with_suffix(".png")
    figure = partition_picture(counts, dataset.classes, title, sizes)
    with atomic_write(picture) as temporary:
        figure.savefig(temporary, format="png")
    _print_table(heterogeneity(counts), title, sizes, len(private), len(dataset.classes))
    print(f"Partition: {out}\nPicture: {picture}")
    print(f"Train with it: --data.partition Fixed --data.partition.clients {out} --data.num_clients {len(parts)}")


def _print_table(scores: Heterogeneity, title: str, sizes: Tensor, num_samples: int, num_classes: int) -> None:
    table = Table(title=title, show_header=False)
    smallest, median, largest = sizes.double().quantile(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)).tolist()
    table.add_row("clients", f"{len(sizes):,}")
    table.add_row("samples held", f"{int(sizes.sum()):,} of {num_samples:,}")
    table.add_row("smallest, median, largest client", f"{smallest:,.0f}, {median:,.0f}, {largest:,.0f}")
    table.add_row("classes of a client (mean)", f"{scores.distinct_labels:.2f} of {num_classes}")
    table.add_row("share of its largest class (mean)", f"{scores.largest_share:.3f}")
    table.add_row("distance from all clients (mean)", f"{scores.distance:.3f}")
    Console(markup=False).print(table)
