"""The choice of a few samples that represent many."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

_TIE = 1e-5  # distances of means of unit vectors: engines' rounding is below it


def reservoir(kept: Sequence[int], met: int, offered: Sequence[int], capacity: int, rng: np.random.Generator) -> list[int]:
    """A uniform sample of all items met so far, after further ones are offered: algorithm R (Vitter, 1985).

    The k-th item met, counted from 0, is appended while ``k < capacity``; later it takes slot j, drawn from 0 to k, if
    ``j < capacity``.

    Args:
        kept: at most ``capacity`` of the ``met`` items so far.
        met: number of items met before.
        offered: further items, in order.
        capacity: at least 0.
        rng: used for one draw per item once the memory is full.

    Example::

        >>> reservoir([7, 8], met=2, offered=[9], capacity=4, rng=np.random.default_rng(0))
        [7, 8, 9]
    """
    kept = list(kept)
    for count, thing in enumerate(offered, start=met):
        if count < capacity:
            kept.append(thing)
        elif (slot := int(rng.integers(count + 1))) < capacity:
            kept[slot] = thing
    return kept


def herding(features: Tensor, count: int) -> Tensor:
    """Indices of samples in an order that keeps their running mean nearest to the mean of all: iCaRL, Algorithm 4.

    Rebuffi, Kolesnikov, Sperl, Lampert, "iCaRL: Incremental Classifier and Representation Learning", CVPR 2017. Features are
    scaled to length 1; the k-th choice, among those not chosen, minimises ``||mu - (f + sum of the chosen) / k||``. The first
    choices of a longer herding are a shorter herding. Of samples that tie, within 1e-5 or, in half precision, within its
    resolution at 1, the first is chosen.

    Args:
        features: (n, d).
        count: at most n are chosen, (min(count, n),).

    Example::

        >>> herding(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), count=2)
        tensor([2, 0])
    """
    tie, features = max(_TIE, torch.finfo(features.dtype).eps), F.normalize(features.double(), dim=1)
    mean, total = features.mean(dim=0), torch.zeros_like(features[0])
    is_free = torch.ones(len(features), dtype=torch.bool, device=features.device)
    chosen: list[Tensor] = []
    for k in range(1, min(count, len(features)) + 1):
        distance = (mean - (total + features) / k).norm(dim=1).where(is_free, float("inf"))
        chosen.append((distance <= distance.min() + tie).int().argmax())
        total = total + features[chosen[-1]]
        is_free[chosen[-1]] = False
    return torch.stack(chosen) if chosen else torch.zeros(0, dtype=torch.int64, device=features.device)
