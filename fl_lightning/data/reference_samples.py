"""Samples that no client has, as the federation's net takes them."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from fl_lightning.data.datamodule import FederatedDataModule
from fl_lightning.data.loaders import EvaluationInputs
from fl_lightning.data.prepared_samples import Part, PreparedSamples
from fl_lightning.data.sources.source import Source
from fl_lightning.data.token_ids import check_token_ids
from fl_lightning.protocol import Batch


class ReferenceSamples:
    """The samples of another source with a federation's preparation, in evaluation mode, and its class indices.

    They are on the device on which the federation's samples are at their first use.

    Args:
        what: the source as the user gave it, such as ``data.source is digits``, for messages.
        source: its classes are among those of the federation.
        root: folder of the source, as ``data.root``.

    Raises:
        FileNotFoundError: if the source is not there.
        ValueError: if it cannot be read, there is no such sample, its shape is another, the federation lacks its class, or the
            net has no embedding of a token.
    """

    def __init__(
        self, what: str, source: Source, root: Path, data: FederatedDataModule, net: nn.Module, part: Part = "test"
    ) -> None:
        try:
            dataset = source.load(root)
        except (ValueError, FileNotFoundError) as error:  # names its keys as if it were data.source
            raise type(error)(f"{what}: {error}") from error
        samples = dataset.train if part == "train" else dataset.test
        if len(samples) == 0:
            raise ValueError(f"{what}, which has no {part} sample: give another source")
        if type(dataset.objective) is not type(data.objective):
            raise ValueError(f"{what}, with {dataset.objective!r}, data.source with {data.objective!r}: give one of its kind")
        by_name = data.objective.tells_classes
        needed, made = (one.objective.num_outputs(len(one.classes)) for one in (dataset, data))
        if not by_name and needed > made:
            raise ValueError(f"{what}, with targets for {needed} outputs of a net, data.source for {made}: give both the same")
        strange = [known for known in dataset.classes if by_name and known not in data.classes]
        if strange:
            raise ValueError(
                f"{what}, with the class {strange[0]}, which data.source lacks: give both the same class names, "
                "as SomeClasses does"
            )
        self._part: Part = part
        self._samples, self._preparation = PreparedSamples(dataset, data.preparation, "auto", 0), data.preparation
        given, taken = ((record.shape, record.dtype) for record in (self._samples.input_record, data.samples.input_record))
        if given != taken:
            raise ValueError(
                f"{what}, with samples of shape {given[0]} and type {given[1]}, must be {taken[0]} and {taken[1]}: convert them"
            )
        check_token_ids(what, net, self._preparation, [samples])
        self._targets = samples.targets
        if by_name:
            self._targets = torch.tensor([data.classes.index(known) for known in dataset.classes])[samples.targets]

    def __len__(self) -> int:
        return len(self._targets)

    @cached_property
    def inputs(self) -> EvaluationInputs:
        """All inputs, (n, ...), made part by part."""
        self._samples.to(self._preparation.device, self._preparation.dtype, announce=False)
        return self._samples.inputs(self._part, torch.arange(len(self)))

    @cached_property
    def targets(self) -> Tensor:
        """(n,), classes of the federation, or the targets of another objective."""
        return self._targets.to(self._preparation.device)

    def batches(self, size: int) -> Iterator[Batch]:
        """All samples, ``size`` at a time."""
        for inputs, targets in zip(self.inputs.split(size), self.targets.split(size), strict=True):
            yield Batch(inputs, targets)
