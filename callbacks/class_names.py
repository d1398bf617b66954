"""The classes that there have been, and how pictures name them: with the rounds in which arriving ones came and went."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning.module import FederatedModule


def num_seen(module: FederatedModule) -> int:
    """How many classes there have been: all, unless they arrive; the others are the last ones."""
    progress = module.tasks.class_progress()
    return len(module.data.classes) if progress is None else progress.num_seen


def class_names(module: FederatedModule) -> list[str]:
    """Names of the classes in label order; of arriving ones as ``3 (rounds 7 to 12)``, between which clients have samples."""
    names, progress = list(module.data.classes), module.tasks.class_progress()
    if progress is None:
        return names
    return with_rounds(names, class_rounds(module.data.class_streams.positions_of_classes(), progress.rounds_per_task))


def class_rounds(positions: Sequence[tuple[int, int] | None], rounds_per_task: int) -> Tensor:
    """First and last round (C, 2) in which clients have samples of each class; NaN where they never have.

    Args:
        positions: of the first and the last task with samples of each class; None where none has.
    """
    unknown = [float("nan")] * 2
    return torch.tensor(
        [unknown if span is None else [span[0] * rounds_per_task + 1, (span[1] + 1) * rounds_per_task] for span in positions]
    )


def with_rounds(names: Sequence[str], rounds: Tensor) -> list[str]:
    """Names of classes with their rounds (C, 2), where those are known."""
    return [
        name if math.isnan(last) else f"{name} (rounds {first:.0f} to {last:.0f})"
        for name, (first, last) in zip(names, rounds.tolist(), strict=True)
    ]
