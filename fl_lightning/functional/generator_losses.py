"""Losses with which generated images replace samples that no client has any more.

S. Babakniya, Z. Fabian, C. He, M. Soltanolkotabi, S. Avestimehr: A Data-Free Approach to Mitigate Catastrophic Forgetting in
Federated Class Incremental Learning for Vision Tasks (MFCL). NeurIPS 2023. arXiv 2311.07784.
J. Zhang, C. Chen, W. Zhuang, L. Lyu: TARGET: Federated Class-Continual Learning via Exemplar-Free Distillation. ICCV 2023.
arXiv 2303.06937: :func:`moment_distance` and :func:`boundary_loss`.
M.-T. Tran, T. Le, X.-M. Le, M. Harandi, D. Phung: Text-Enhanced Data-free Approach for Federated Class-Incremental Learning
(LANDER). CVPR 2024. arXiv 2403.14101: :func:`anchor_loss`.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fl_lightning.functional.distillation import ensemble_distillation

Boundary = Literal["agree", "disagree"]
_SMOOTH = 5  # pixels of the kernel's side


def class_imbalance(logits: Tensor) -> Tensor:
    """``1 + (1/log K) sum_c p_c log p_c`` of the mean softmax p over a batch: 0 if all K classes are equally likely, 1 for one.

    Args:
        logits: (B, K), K at least 2.

    Example::

        >>> class_imbalance(torch.tensor([[50.0, -50.0], [-50.0, 50.0]]))
        tensor(0.)
        >>> # 1 - (3/4 log 4/3 + 1/4 log 4) / log 2
        >>> class_imbalance(torch.tensor([[3.0, 1.0]]).log())
        tensor(0.1887)
    """
    mean = logits.softmax(dim=1).mean(dim=0)
    return 1 - torch.special.entr(mean).sum() / math.log(logits.shape[1])


def gaussian_divergence(mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor) -> Tensor:
    """``KL(N(other) || N(this))``, mean over channels: the distance of a batch's moments from the running ones of BatchNorm.

    Args:
        mean, variance: (channels,), of the batch; variances above 0.
        other_mean, other_variance: of the layer.

    Example::

        >>> one, two = torch.tensor([1.0]), torch.tensor([2.0])
        >>> gaussian_divergence(two, one, one, one)  # (2 - 1)^2 / 2
        tensor(0.5000)
    """
    ratio = (other_variance + (other_mean - mean).square()) / variance
    return ((variance / other_variance).log() - 1 + ratio).mean() / 2


def moment_distance(mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor) -> Tensor:
    """``|v - v'|_2 + |m - m'|_2`` over channels: the distance of a batch's moments from the running ones in TARGET.

    Args:
        mean, variance: (channels,), of the batch.
        other_mean, other_variance: of the layer.

    Example::

        >>> zero, one = torch.zeros(2), torch.ones(2)
        >>> moment_distance(torch.tensor([3.0, 4.0]), one, zero, one)
        tensor(5.)
    """
    return torch.linalg.vector_norm(variance - other_variance) + torch.linalg.vector_norm(mean - other_mean)


def boundary_loss(student_logits: Tensor, teacher_logits: Tensor, boundary: Boundary = "agree") -> Tensor:
    """``-mean_b [mask_b KL(p_b || q_b)]``, p of the teacher and q of the student: low where a student can still learn.

    Args:
        student_logits, teacher_logits: (B, C).
        boundary: the samples in the mask: ``agree``, those with the same class by both models, as in TARGET's code, or
            ``disagree``, the others, as in its paper.

    Example::

        >>> student, teacher = torch.zeros(1, 2), torch.tensor([[3.0, 1.0]]).log()
        >>> boundary_loss(student, teacher)  # 3/4 log 3/2 + 1/4 log 1/2, of the same class
        tensor(-0.1308)
        >>> boundary_loss(student, teacher, "disagree")
        tensor(-0.)
    """
    agrees = student_logits.argmax(dim=1) == teacher_logits.argmax(dim=1)
    divergence = ensemble_distillation(student_logits, teacher_logits[None], reduction="none")
    return -(divergence * (agrees == (boundary == "agree"))).mean()


def anchor_loss(projected: Tensor, anchors: Tensor, radius: float, real: Tensor | None = None) -> Tensor:
    """``max(0, MSE - r)``, a scalar, the mean over a batch and the width: 0 for a batch near its anchors.

    Args:
        projected, anchors: (B, width), of each sample.
        radius: r, on the scale of a square.
        real: (B,), false for padding samples; None: all count.

    Example::

        >>> # 1/4 - .05
        >>> anchor_loss(
        ...     torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.zeros(2, 2), radius=0.05
        ... )
        tensor(0.2000)
        >>> anchor_loss(torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2), radius=0.5)
        tensor(0.)
    """
    each = (projected - anchors).square().mean(dim=1)
    mean = each.mean() if real is None else (each * real).sum() / real.sum()
    return (mean - radius).clamp_min(0)


def roughness(images: Tensor) -> Tensor:
    """Mean squared difference of images (B, channels, height, width) from themselves smoothed, a scalar.

    The kernel is 5x5, ``exp(-((u - 2) / 2)^2)`` along each axis, with sum 1, borders mirrored or, if images are too small for
    that, repeated.

    Example::

        >>> roughness(torch.zeros(1, 1, 4, 4))
        tensor(0.)
    """
    line = torch.exp(-(((torch.arange(_SMOOTH, dtype=images.dtype, device=images.device) - 2) / 2) ** 2))
    kernel = torch.outer(line, line) / line.sum() ** 2
    border = "reflect" if min(images.shape[2:]) > _SMOOTH // 2 else "replicate"
    padded = F.pad(images, (_SMOOTH // 2,) * 4, mode=border)
    channels = images.shape[1]
    smooth = F.conv2d(padded, kernel.expand(channels, 1, _SMOOTH, _SMOOTH), groups=channels)
    return (images - smooth).square().mean()
