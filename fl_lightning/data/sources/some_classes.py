"""A source with the samples of some of its classes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from fl_lightning.data.samples import Dataset, check_has_classes
from fl_lightning.data.sources.by_name import open_source
from fl_lightning.data.sources.source import Source


class SomeClasses(Source):
    """The samples of some classes of a source; all its classes keep their labels, so that a net has an output for each.

    For a net that learns some classes first and meets the others in a federation.

    Args:
        source: the source, or its name.
        first: the first classes in label order, so many of them; or
        names: the names of the classes.
        without: take all other classes instead.

    Raises:
        ValueError: if both or none of ``first`` and ``names`` are given; as it loads, if there is no such class, or samples
            have no class.
    """

    def __init__(
        self, source: str | Source, first: int | None = None, names: Sequence[str] | None = None, without: bool = False
    ) -> None:
        if (first is None) == (names is None):
            raise ValueError(f"data.source.first is {first} and data.source.names is {names}: give one of them")
        self.source, self.first, self.names, self.without = open_source(source, "data.source.source"), first, names, without

    def load(self, root: Path) -> Dataset:
        dataset = self.source.load(root)
        check_has_classes(dataset, "SomeClasses")
        chosen = torch.zeros(len(dataset.classes), dtype=torch.bool)
        chosen[self._labels(dataset.classes)] = True
        if self.without:
            chosen = ~chosen
        in_train, in_test = (chosen[part.targets].nonzero().flatten() for part in (dataset.train, dataset.test))
        train, test = dataset.train.some(in_train), dataset.test.some(in_test)
        owners = test_owners = None
        if dataset.owners is not None:
            holders, owners = torch.unique(dataset.owners[in_train], return_inverse=True)
            if dataset.test_owners is not None:  # as everywhere, -1 is a client without training samples
                tested = dataset.test_owners[in_test]
                test_owners = torch.where(torch.isin(tested, holders), torch.searchsorted(holders, tested), -1)
        return replace(dataset, train=train, test=test, owners=owners, test_owners=test_owners)

    def _labels(self, classes: Sequence[str]) -> list[int]:
        if self.first is not None:
            if not 1 <= self.first < len(classes):
                raise ValueError(f"data.source.first is {self.first}, must be between 1 and {len(classes) - 1}")
            return list(range(self.first))
        for name in self.names or ():
            if name not in classes:
                raise ValueError(f"data.source.names has {name}, which is not a class: the classes are {', '.join(classes)}")
        return [classes.index(name) for name in self.names or ()]
