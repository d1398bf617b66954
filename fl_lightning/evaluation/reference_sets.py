"""Reference sets: test samples of another source, on which a federation's net is asked what it still knows."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from fl_lightning.data import EvaluationInputs, FederatedDataModule
from fl_lightning.data.prepared_samples import PreparedSamples
from fl_lightning.data.sources.by_name import open_source
from fl_lightning.data.sources.source import Source

ReferenceSource = str | Source  # by name, or as an object


class ReferenceSets:
    """The test samples of some sources, as the net of a federation takes them.

    Args:
        sources: by name.
        root: folder of the sources; None: that of ``data.root``.
    """

    def __init__(self, sources: Mapping[str, ReferenceSource], root: str | None) -> None:
        self._sources = {name: open_source(source) for name, source in sources.items()}
        self._root = None if root is None else Path(root)

    def prepare(self, data: FederatedDataModule) -> dict[str, tuple[EvaluationInputs, Tensor]]:
        """By name, the inputs and their classes in the federation, on the device of its net.

        Raises:
            ValueError: if a set has no test sample, another shape or a class that the federation lacks.
        """
        return {name: self._prepared(name, source, data) for name, source in self._sources.items()}

    def _prepared(self, name: str, source: Source, data: FederatedDataModule) -> tuple[EvaluationInputs, Tensor]:
        dataset, what = source.load(self._root or data.root), f"ReferenceAccuracy.sets has {name}, "
        if len(dataset.test) == 0:
            raise ValueError(f"{what}which has no test sample: give another source")
        strange = [known for known in dataset.classes if known not in data.classes]
        if strange:
            raise ValueError(f"{what}with the class {strange[0]}, which data.source lacks: its net has no output for it")
        samples = PreparedSamples(dataset, data.preparation, "auto", 0)
        given, taken = ((record.shape, record.dtype) for record in (samples.input_record, data.samples.input_record))
        if given != taken:
            raise ValueError(f"{what}with samples of shape {given[0]} and type {given[1]}, must be {taken[0]} and {taken[1]}")
        samples.to(data.preparation.device, data.preparation.dtype, announce=False)
        label = torch.tensor([data.classes.index(known) for known in dataset.classes])
        inputs = samples.inputs("test", torch.arange(len(dataset.test)))
        return inputs, label[dataset.test.targets].to(data.preparation.device)
