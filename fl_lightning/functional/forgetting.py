"""Measures of forgetting: across clients within a round, and from round to round."""

from collections.abc import Mapping
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class ClientForgettingScores(NamedTuple):
    """Result of :func:`client_forgetting`; negative values are forgetting."""

    forgetting: Tensor  # (K, K): [i, k] is model i on data k, after minus before
    per_model: Tensor  # (K,): mean over the data of the other clients, the last column of the heatmaps
    per_data: Tensor  # (K,): mean over the models of the other clients, F_k as printed


def client_forgetting(before: Tensor, after: Tensor) -> ClientForgettingScores:
    """Change in accuracy on every client's data by the local training of each client's model.

    ``F[i, k] = Acc_k(w_t^i) - Acc_k(w_{t-1})`` (Legate, Caccia, Belilovsky, section 2, "Local client forgetting"). The paper
    averages over models, its heatmaps over datasets; the function returns both, without the diagonal. Clients without data are
    NaN and are left out of the means; with a single client the means are NaN.

    Args:
        before: (K,) accuracy of the global model on client k's data; or (K, K) ``before[i, k]`` of the model that client i used
            before its fit, where clients have personal models.
        after: (K, K) accuracy ``after[i, k]`` of client i's model on client k's data.

    Returns:
        ``forgetting`` (K, K), ``per_model`` (K,) and ``per_data`` (K,), in the units of the accuracies.

    Raises:
        ValueError: if the shapes do not match.

    Example::

        >>> before, after = torch.tensor([0.5, 0.5]), torch.tensor([[1.0, 0.25], [0.0, 0.75]])
        >>> scores = client_forgetting(before, after)
        >>> scores.forgetting
        tensor([[ 0.5000, -0.2500],
                [-0.5000,  0.2500]])
        >>> scores.per_model, scores.per_data
        (tensor([-0.2500, -0.5000]), tensor([-0.5000, -0.2500]))
    """
    square = (len(after), len(after))
    if after.shape != square or before.shape not in (square[:1], square):
        raise ValueError(
            f"before has shape {tuple(before.shape)} and after {tuple(after.shape)}, must be (K,) or (K, K) and (K, K)"
        )
    forgetting = after - before
    others = forgetting.masked_fill(torch.eye(len(before), dtype=torch.bool, device=after.device), float("nan"))
    return ClientForgettingScores(forgetting, others.nanmean(dim=1), others.nanmean(dim=0))


def round_forgetting(previous: Tensor, current: Tensor) -> Tensor:
    """Mean drop in per-class accuracy from one global model to the next, gains not counted.

    ``F_t = -(1/C) sum_c min(0, A_t^c - A_{t-1}^c)`` (the Flashback paper's round forgetting, with the sign under which the
    formula collects drops). Classes that are NaN in either argument are left out of the sum and of C.

    Args:
        previous: (C,) per-class accuracy before.
        current: (C,) per-class accuracy after.

    Returns:
        Scalar in [0, 1]; NaN if no class has both values.

    Raises:
        ValueError: if the shapes differ.

    Example::

        >>> # a drop of 1/2, and a gain
        >>> round_forgetting(torch.tensor([0.75, 0.5]), torch.tensor([0.25, 1.0]))
        tensor(0.2500)
    """
    if previous.shape != current.shape:
        raise ValueError(f"previous has shape {tuple(previous.shape)} and current {tuple(current.shape)}, must be equal")
    return (previous - current).clamp_min(0).nanmean()


def mean_round_forgetting(accuracies: Tensor) -> Tensor:
    """Mean of :func:`round_forgetting` over the rounds that have one before them, ``1/(T-1) sum_{t>1} F_t``.

    Args:
        accuracies: (T, C) per-class accuracy of the global model after each evaluated round.

    Returns:
        Scalar in [0, 1]; NaN if every round is.

    Raises:
        ValueError: if there are fewer than two rounds.

    Example::

        >>> # (1/4 + 1/4) / 2
        >>> mean_round_forgetting(torch.tensor([[0.75, 0.5], [0.25, 1.0], [0.25, 0.5]]))
        tensor(0.2500)
    """
    _check_rounds(accuracies)
    return torch.stack([round_forgetting(*pair) for pair in pairwise(accuracies)]).nanmean()


def local_forgetting(before: Tensor, after: Tensor) -> Tensor:
    """F_kt: mean drop in per-class accuracy by the local fit of each client, gains not counted.

    ``F_kt = -(1/C) sum_c min(0, A_kt^c - A_{t-1}^c)``, :func:`round_forgetting` from the model that client k receives in round
    t to the one that it sends (the Flashback paper, section 3). NaN classes are left out of the sum and of C.

    Args:
        before: (C,) per-class accuracy of the global model, or (K, C) of the models that the clients start from.
        after: (K, C) per-class accuracy of the clients' models after their fits.

    Returns:
        (K,) in [0, 1].

    Example::

        >>> local_forgetting(
        ...     torch.tensor([0.75, 0.5]), torch.tensor([[0.25, 1.0], [0.75, 0.25]])
        ... )
        tensor([0.2500, 0.1250])
    """
    return (before - after).clamp_min(0).nanmean(dim=1)


def loss_increase(before: Tensor, after: Tensor) -> Tensor:
    """What the local fits of a round add to the loss on the data of the clients of the round before.

    ``1/P sum_i (1/K sum_k after[k, i] - before[i])`` (Xu et al., FedReg, ICLR 2022, Appendix B.1). Losses that are not finite
    are left out of the mean over models.

    Args:
        before: (P,) loss of the global model on the training data of each client of the round before, in nats.
        after: (K, P) loss of the model of each client of this round on the same data.

    Returns:
        Scalar in nats, without bounds; positive is forgetting.

    Example::

        >>> # (1 + 1/4) / 2
        >>> loss_increase(torch.tensor([0.5, 1.0]), torch.tensor([[1.0, 1.0], [2.0, 1.5]]))
        tensor(0.6250)
    """
    return (after.where(after.isfinite(), float("nan")).nanmean(dim=0) - before).mean()


def forgetting_from_best(accuracies: Tensor) -> Tensor:
    """Mean drop in per-class accuracy from each class's best round to the last one.

    ``F = (1/C) sum_c max_{1 <= t < T} (A_t^c - A_T^c)`` (equation 2 of the Flashback paper, with its "arg max" read as the
    maximum; backward transfer as the FedNTD paper adapts it). Positive is forgetting; a class that is at its best in round T
    counts with its gain, below 0. Rounds in which a class is NaN are left out of its maximum; classes without a value in
    round T, or without any before, are left out of the sum and of C.

    Args:
        accuracies: (T, C) per-class accuracy of the global model after rounds 1 to T, or after those that were evaluated.

    Returns:
        Scalar in [-1, 1]; NaN if every class is.

    Raises:
        ValueError: if there are fewer than two rounds.

    Example::

        >>> # a drop of 1/2, and a gain of 1/4
        >>> forgetting_from_best(torch.tensor([[0.5, 0.25], [1.0, 0.0], [0.5, 0.5]]))
        tensor(0.1250)
    """
    _check_rounds(accuracies)
    best = reduce(torch.fmax, accuracies[:-1])  # of the rounds in which a class was measured
    return (best - accuracies[-1]).nanmean()


def _check_rounds(accuracies: Tensor) -> None:
    if accuracies.ndim != 2 or len(accuracies) < 2:
        raise ValueError(f"accuracies has shape {tuple(accuracies.shape)}, must be (T, C) with T at least 2")


def mean_over_rounds(values: Mapping[int, float]) -> float:
    """Mean of measured forgetting without round 1, because the untrained model has nothing to forget.

    Args:
        values: by round, at least one; if none is later, that of round 1 counts.

    Example::

        >>> mean_over_rounds({1: 0.75, 2: 0.25, 3: 0.5})
        0.375
    """
    later = [values[round] for round in sorted(values) if round > 1] or [values[round] for round in sorted(values)]
    return float(np.mean(later))
