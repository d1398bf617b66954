"""The reference sets of a callback, and accuracy on them: of the present net, and of those between it and the initial one."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from torch import nn

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.reference_samples import ReferenceSamples
from fl_lightning.data.sources.by_name import open_source
from fl_lightning.data.sources.source import Source
from fl_lightning.functional import weighted_average
from fl_lightning.functional.aggregation import State
from fl_lightning.functional.stateless import tensors_of
from fl_lightning.models.federated_net import copied_net, global_tensors
from fl_lightning.run.trainer_settings import averages_of

ReferenceSource = str | Source  # by name, or as an object


def named_sources(key: str, sets: Mapping[str, ReferenceSource]) -> dict[str, Source]:
    """The sources of reference sets by name.

    Raises:
        FileNotFoundError: if a source is an archive that does not exist.
        ValueError: if there is none, a name is not one word, or a source is neither an object nor the name of one.
    """
    if not sets:
        raise ValueError(f"{key} is empty: give a source by name")
    for name in sets:
        if not re.fullmatch(r"\w+", name):
            raise ValueError(f"{key} has {name!r}, must be one word of letters, digits and _: rename it")
    return {name: open_source(source, f"{key}.{name}") for name, source in sets.items()}


def check_global_model(callback: str, method: FederatedAlgorithm) -> None:
    """Check that a callback has a global model to measure.

    Raises:
        ValueError: if clients keep parts of the net.
    """
    if not method.has_global_model:
        raise ValueError(
            f"callback {callback}: model is {type(method).__name__}, whose clients keep parts of the net, so that there is no "
            "global model: leave the callback out"
        )


def held_references(
    callback: str, sets: Mapping[str, Source], root: str | None, method: FederatedAlgorithm, data: FederatedDataModule
) -> dict[str, ReferenceSamples]:
    """The test samples of reference sets, before round 1; without a root from the folder of the federation's data.

    Raises:
        ValueError: if there is no global model, or as :class:`ReferenceSamples`.
    """
    check_global_model(callback, method)
    folder = data.root if root is None else Path(root)
    return {name: ReferenceSamples(f"{callback}.sets has {name}", one, folder, data, method.net) for name, one in sets.items()}


@contextmanager
def evaluated_weights(trainer: Trainer, method: LightningModule) -> Iterator[None]:
    """In the block the method has the weights that validation reads: their average, where EMA or SWA of Lightning makes one."""
    averages = averages_of(trainer)
    for average in averages:
        # Takes each round once, and this one perhaps only after the callback that asks.
        average.on_train_batch_end(trainer, method, None, None, 0)
        average.on_validation_epoch_start(trainer, method)
    try:
        yield
    finally:
        for average in reversed(averages):
            average.on_validation_epoch_end(trainer, method)


def present_weights(method: FederatedAlgorithm) -> State:
    """A copy of the global weights and buffers, by name."""
    return {name: tensor.clone() for name, tensor in global_tensors(method).items()}


def mixed_nets(method: FederatedAlgorithm, start: State, shares: Sequence[float]) -> Iterator[nn.Module]:
    """A net for each share a, one after another in the same memory: ``(1 - a) start + a present``; the method's own stays.

    Args:
        start: an earlier result of :func:`present_weights`.
    """
    net, end = copied_net(method), global_tensors(method)
    held = tensors_of(net)
    start = {name: tensor.to(end[name].device) for name, tensor in start.items()}
    for share in shares:
        for name, tensor in weighted_average([start, end], [1 - share, share]).items():
            held[name].copy_(tensor)
        yield net
