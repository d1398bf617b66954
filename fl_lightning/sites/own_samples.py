"""The samples of a site, all of which are its client's."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fl_lightning.data import IID, FederatedDataModule
from fl_lightning.data.federated_split import FederatedSplit
from fl_lightning.data.samples import Dataset
from fl_lightning.data.shards import ClientShards, shards_of_parts, split_clients
from fl_lightning.functional.partition.parts import Parts
from fl_lightning.functional.random_streams import numpy_stream


@dataclass(frozen=True)
class OwnSamples(FederatedSplit):
    """Gives one client all training samples, and the others none."""

    client: int = 0  # its index

    def shards(self, dataset: Dataset, private: Tensor, val_fraction: float, test_fraction: float = 0.0) -> ClientShards:
        """All samples are the client's, for training, validation and tests."""
        classes = len(dataset.classes)
        counted = dataset.objective.unit_counts(dataset.train.targets, classes)
        rng = numpy_stream(self.seed, -1, -1, "validation split")
        own = split_clients(Parts.of([private]), counted, classes, val_fraction, rng, test_fraction)
        nobody = torch.zeros(self.num_clients, dtype=torch.int64)
        train, validation, test = (
            Parts(part, nobody.index_fill(0, torch.tensor(self.client), len(part)))
            for part in (own.train, own.validation, own.test)
        )
        return shards_of_parts(train, validation, counted, classes, test)


def own_data(client: int) -> type[FederatedDataModule]:
    """The class of a data module with a source that has only one client's samples, since configs build data from a class."""

    class OwnData(FederatedDataModule):
        def setup(self, stage: str | None = None) -> None:
            """Read the source and give all of its training samples to the client; a second call does nothing."""
            split = self.split
            self.split = OwnSamples(IID(), split.num_clients, split.public_size, split.seed, client)
            super().setup(stage)

    return OwnData
