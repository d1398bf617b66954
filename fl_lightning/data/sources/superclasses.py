"""Classes joined into superclasses."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import torch

from fl_lightning.checks.csv_files import read_rows
from fl_lightning.data.samples import Dataset, Samples, check_has_classes
from fl_lightning.data.sources.by_name import open_source
from fl_lightning.data.sources.source import Source

CIFAR100_TABLE = Path(str(resources.files("fl_lightning.data") / "cifar100_superclasses.csv"))


class Superclasses(Source):
    """A source with the superclasses of its classes as labels, such as the twenty coarse labels of CIFAR-100.

    Args:
        source: the source to relabel, or its name.
        table: CSV file with the columns ``class,superclass``, a line for each class; by default the table of CIFAR-100.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: naming file and line, if the table lacks a class, lists one twice, or lists an unknown one; as it loads,
            if samples have no class.
    """

    def __init__(self, source: str | Source, table: str | None = None) -> None:
        self.source = open_source(source, "data.source.source")
        self.table = Path(table) if table is not None else CIFAR100_TABLE

    def load(self, root: Path) -> Dataset:
        dataset = self.source.load(root)
        check_has_classes(dataset, "Superclasses")
        of_class = read_superclasses(self.table, dataset.classes, "data.source.table")
        names = sorted(set(of_class))
        label = torch.tensor([names.index(name) for name in of_class])
        train, test = (Samples(part.inputs, label[part.targets]) for part in (dataset.train, dataset.test))
        return Dataset(train, test, tuple(names), dataset.owners, dataset.test_owners)


def read_superclasses(table: Path, classes: Sequence[str], key: str) -> list[str]:
    """The superclass of each class, in label order.

    Args:
        key: key of the config, for messages.

    Raises:
        FileNotFoundError, ValueError: as :class:`Superclasses`.
    """
    found: dict[str, tuple[int, str]] = {}
    for line, row in read_rows(table, key, ("class", "superclass")):
        name = row["class"]
        if name not in classes:
            raise ValueError(
                f"{key}: {table}, line {line}: {name} is not a class of data.source, whose classes are {', '.join(classes)}: "
                f"give {key} a table of these"
            )
        if name in found:
            raise ValueError(f"{key}: {table}, line {line}: {name} is in line {found[name][0]} too: delete one")
        if not row["superclass"]:
            raise ValueError(f"{key}: {table}, line {line}: {name} has no superclass: name one")
        found[name] = (line, row["superclass"])
    for name in classes:
        if name not in found:
            raise ValueError(f"{key}: {table} has no line for the class {name} of data.source: add one")
    return [found[name][1] for name in classes]
