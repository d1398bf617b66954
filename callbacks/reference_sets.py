"""The reference sets of a callback, and accuracy on them."""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from fl_lightning.data.reference_samples import ReferenceSamples
from fl_lightning.data.sources.by_name import open_source
from fl_lightning.data.sources.source import Source
from fl_lightning.metrics import accuracy_by_owner
from fl_lightning.module import FederatedModule


def accuracy_on(logits: Tensor, targets: Tensor) -> Tensor:
    """(...) from logits (..., n, C)."""
    return accuracy_by_owner(logits, targets, torch.zeros_like(targets), 1)[..., 0]


def named_sources(key: str, sets: Mapping[str, str | Source]) -> dict[str, Source]:
    """The sources of reference sets by name.

    Raises:
        ValueError: if there is none, or a name is no word.
    """
    if not sets:
        raise ValueError(f"{key} is empty: give a source by name")
    for name in sets:
        if not re.fullmatch(r"\w+", name):
            raise ValueError(f"{key} has {name!r}, must be one word of letters, digits and _: rename it")
    return {name: open_source(source) for name, source in sets.items()}


def held_references(
    callback: str, sets: Mapping[str, Source], root: str | None, module: FederatedModule
) -> dict[str, ReferenceSamples]:
    """The test samples of reference sets, before round 1; without a root from the folder of the federation's data.

    Raises:
        ValueError: if there is no global model, or as :class:`ReferenceSamples`.
    """
    if not module.has_global_model:
        raise ValueError(
            f"callback {callback}: model is {type(module).__name__}, whose clients keep parts of the net, so that there is "
            "no global model to ask: leave the callback out"
        )
    folder = module.data.root if root is None else Path(root)
    return {name: ReferenceSamples(f"{callback}.sets has {name}", one, folder, module.data) for name, one in sets.items()}
