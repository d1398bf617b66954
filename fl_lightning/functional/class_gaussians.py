"""A Gaussian of features for each class, from means and covariances of parts that never meet."""

from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor


class ClassMoments(NamedTuple):
    """Features by class in numbers, float64; zeros where a class has too few samples.

    The covariance is the unbiased one, over ``n - 1``.
    """

    counts: Tensor  # (C,), int64
    means: Tensor  # (C, d)
    covariances: Tensor  # (C, d, d)


def class_moments(features: Tensor, targets: Tensor, num_classes: int) -> ClassMoments:
    """Count, mean and covariance of the features of each class.

    Args:
        features: (n, d).
        targets: (n,), classes.

    Example::

        >>> moments = class_moments(
        ...     torch.tensor([[1.0], [3.0], [7.0]]), torch.tensor([0, 0, 1]), num_classes=3
        ... )
        >>> (
        ...     moments.counts.tolist(),
        ...     moments.means.flatten().tolist(),
        ...     moments.covariances.flatten().tolist(),
        ... )
        ([2, 1, 0], [2.0, 7.0, 0.0], [2.0, 0.0, 0.0])
    """
    features, width = features.double(), features.shape[1]
    means, covariances = features.new_zeros(num_classes, width), features.new_zeros(num_classes, width, width)
    for label in targets.unique().tolist():
        rows = features[targets == label]
        means[label] = rows.mean(dim=0)
        centred = rows - means[label]
        covariances[label] = torch.mm(centred.T, centred) / max(len(rows) - 1, 1)
    return ClassMoments(targets.bincount(minlength=num_classes), means, covariances)


def pooled_moments(parts: Iterable[ClassMoments]) -> ClassMoments:
    """The moments of all features together, from those of parts such as clients.

    ``mu = sum_k n_k mu_k / N`` and ``Sigma = (sum_k (n_k - 1) Sigma_k + sum_k n_k mu_k mu_k^T - N mu mu^T) / (N - 1)`` for each
    class: equations 3 and 4 of M. Luo et al., "No Fear of Heterogeneity: Classifier Calibration for Federated Learning with
    Non-IID Data", NeurIPS 2021. Parts are taken one after another, by differences of means: products of means, as equation
    4 has them, cancel where means are large.

    Args:
        parts: one or more, of the same classes and width.

    Example::

        >>> parts = torch.tensor([[[0.0], [2.0]], [[4.0], [6.0]]])
        >>> pooled = pooled_moments(
        ...     class_moments(part, torch.tensor([0, 0]), num_classes=1) for part in parts
        ... )
        >>> pooled.means.item(), round(pooled.covariances.item(), 4)  # of 0, 2, 4 and 6
        (3.0, 6.6667)
    """
    return reduce(_together, parts)


def draw_features(moments: ClassMoments, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Features from the Gaussian of each class that has samples, (K count, d) float64, and their classes, (K count,).

    Args:
        count: of each class.
        generator: on the CPU, where the features are drawn.

    Example::

        >>> moments = class_moments(
        ...     torch.tensor([[1.0], [1.0]]), torch.tensor([2, 2]), num_classes=3
        ... )
        >>> draw_features(moments, 2, torch.Generator())
        (tensor([[1.],
                [1.]], dtype=torch.float64), tensor([2, 2]))
    """
    counts, means, covariances = (tensor.cpu() for tensor in moments)
    held = counts.nonzero().flatten()
    values, vectors = torch.linalg.eigh(covariances[held])  # of few samples it is singular, which Cholesky refuses
    roots = vectors * values.clamp_min(0).sqrt()[:, None]  # (K, d, d)
    draws = torch.randn(len(held), count, means.shape[1], dtype=means.dtype, generator=generator)
    return (means[held, None] + draws @ roots.mT).flatten(0, 1), held.repeat_interleave(count)


def _together(first: ClassMoments, second: ClassMoments) -> ClassMoments:
    counts = first.counts + second.counts
    share, step = second.counts.double() / counts.clamp_min(1), second.means - first.means
    between = (first.counts * share)[:, None, None] * step[:, :, None] * step[:, None, :]
    within = [(part.counts - 1).clamp_min(0)[:, None, None] * part.covariances for part in (first, second)]
    covariances = (within[0] + within[1] + between) / (counts - 1).clamp_min(1)[:, None, None]
    return ClassMoments(counts, first.means + share[:, None] * step, covariances)
