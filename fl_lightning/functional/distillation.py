"""Losses that hold a model to the predictions of other models.

Logits have shape (B, C). Half-precision logits are computed and returned in float32, as autocast does for cross entropy.
Teachers' logits get a gradient unless the caller detached them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fl_lightning.functional.loss_reductions import LossReduction, at_least_float32, reduce_losses


def not_true_distillation(
    student_logits: Tensor,
    teacher_logits: Tensor,
    target: Tensor,
    temperature: float = 1.0,
    reduction: LossReduction = "mean",
    hidden: Tensor | None = None,
) -> Tensor:
    """``tau^2 KL(p || q)`` between teacher p and student q over the classes that are *not* the true one.

    Lee, Jeong, Shin, Bae, Yun, "Preservation of the Global Knowledge by Not-True Distillation in Federated Learning", NeurIPS
    2022, equation 4, without the factor beta. The true class is removed before the softmax; its logit gets a gradient of
    exactly 0.

    Args:
        student_logits, teacher_logits: (B, C), C at least 2.
        target: (B,) class indices.
        temperature: tau, above 0.
        reduction: ``mean`` and ``sum`` give a scalar, ``none`` gives (B,).
        hidden: (C,), true for classes that only the teacher leaves out too; it has nothing to tell, 0, where none is left.

    Raises:
        ValueError: if ``reduction`` is none of the three.

    Example::

        >>> student = torch.tensor([[7.0, 0.0, 0.0]])  # even over classes 1 and 2
        >>> teacher = torch.tensor([[0.0, 3.0, 1.0]]).log()  # 3/4 and 1/4 of them
        >>> # 3/4 log(3/2) + 1/4 log(1/2)
        >>> not_true_distillation(student, teacher, torch.tensor([0]))
        tensor(0.1308)
    """
    is_true = target[..., None] == torch.arange(student_logits.shape[-1], device=target.device)
    is_masked = is_true if hidden is None else is_true | hidden
    student, teacher = (
        (at_least_float32(logits) / temperature).masked_fill(mask, float("-inf")).log_softmax(dim=-1)
        for logits, mask in ((student_logits, is_true), (teacher_logits, is_masked))
    )
    if hidden is not None:
        teacher = teacher.masked_fill(is_masked, float("-inf"))  # where nothing is left, the softmax is not a number
    # Where both are -inf their difference is not a number.
    difference = (teacher - student).masked_fill(is_masked, 0.0)
    return reduce_losses(temperature**2 * (teacher.exp() * difference).sum(dim=-1), reduction)


def soft_cross_entropy(
    student_logits: Tensor, teacher_logits: Tensor, temperature: float = 1.0, reduction: LossReduction = "mean"
) -> Tensor:
    """``-sum_c p_c log q_c`` with ``p = softmax(teacher / T)`` and ``q = softmax(student / T)``, without the factor ``T^2``.

    The distillation of Li, Hoiem, "Learning without Forgetting", ECCV 2016, in the form of TARGET's and PyCIL's code. Its
    gradient by the student's logits is ``(q - p) / T``; where both agree it is 0 and the value the entropy of p.

    Args:
        student_logits, teacher_logits: (B, C).
        temperature: T, above 0.
        reduction: ``mean`` and ``sum`` give a scalar, ``none`` gives (B,).

    Raises:
        ValueError: if ``reduction`` is none of the three.

    Example::

        >>> student, teacher = torch.zeros(1, 2), torch.tensor([[3.0, 1.0]]).log()
        >>> soft_cross_entropy(student, teacher)  # log 2, whatever the teacher says
        tensor(0.6931)
    """
    student, teacher = (at_least_float32(logits) / temperature for logits in (student_logits, teacher_logits))
    return reduce_losses(-(teacher.softmax(dim=-1) * student.log_softmax(dim=-1)).sum(dim=-1), reduction)


def model_contrastive_loss(
    z: Tensor, z_global: Tensor, z_previous: Tensor, temperature: float = 0.5, reduction: LossReduction = "mean"
) -> Tensor:
    """A loss that is large if a sample's features are nearer to the previous local model's than to the global model's.

    ``-log(exp(s_g / T) / (exp(s_g / T) + exp(s_p / T)))`` with cosine similarities ``s_g = cos(z, z_global)`` and
    ``s_p = cos(z, z_previous)``: Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021, equation 3.

    Args:
        z, z_global, z_previous: (B, D) features.
        temperature: T, above 0.
        reduction: ``mean`` and ``sum`` give a scalar, ``none`` gives (B,).

    Raises:
        ValueError: if ``reduction`` is none of the three.

    Example::

        >>> z, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> # -log(e / (e + 1))
        >>> model_contrastive_loss(z, z_global=z, z_previous=other, temperature=1.0)
        tensor(0.3133)
    """
    local, near, far = (at_least_float32(features) for features in (z, z_global, z_previous))
    similarities = torch.stack([F.cosine_similarity(local, other, dim=-1) for other in (near, far)], dim=-1)
    return reduce_losses(-(similarities / temperature).log_softmax(dim=-1)[..., 0], reduction)


def ensemble_distillation(
    student_logits: Tensor, teacher_logits: Tensor, temperature: float = 1.0, reduction: LossReduction = "mean"
) -> Tensor:
    """``KL(softmax(mean_k z_k / T) || softmax(z_s / T))``: Lin, Kong, Stich, Jaggi, "Ensemble Distillation for Robust Model
    Fusion in Federated Learning", NeurIPS 2020, without the factor ``T^2``.

    Args:
        student_logits: (B, C).
        teacher_logits: (K, B, C); the mean over teachers is the ensemble.
        temperature: T, above 0.
        reduction: ``mean`` and ``sum`` give a scalar, ``none`` gives (B,).

    Raises:
        ValueError: if ``reduction`` is none of the three.

    Example::

        >>> # of two minds: even as an ensemble
        >>> teachers = torch.tensor([[[4.0, 0.0]], [[0.0, 4.0]]])
        >>> ensemble_distillation(torch.tensor([[1.0, 1.0]]), teachers)
        tensor(0.)
        >>> # 1/2 log(2/3) + 1/2 log(2)
        >>> ensemble_distillation(torch.tensor([[3.0, 1.0]]).log(), teachers)
        tensor(0.1438)
    """
    teacher = (at_least_float32(teacher_logits).mean(dim=0) / temperature).log_softmax(dim=-1)
    student = (at_least_float32(student_logits) / temperature).log_softmax(dim=-1)
    return reduce_losses((teacher.exp() * (teacher - student)).sum(dim=-1), reduction)


def label_count_weights(student_counts: Tensor, teacher_counts: Tensor) -> Tensor:
    """``alpha_i^c = mu_i^c / (nu^c + sum_j mu_j^c)``, with 0/0 = 0: each teacher's weight for each class (Flashback).

    Args:
        student_counts: nu, (C,) label counts behind the student.
        teacher_counts: mu, (K, C) label counts behind each teacher.

    Returns:
        (K, C); the sum over teachers is at most 1.

    Example::

        >>> label_count_weights(
        ...     torch.tensor([2.0, 0.0, 0.0]),
        ...     torch.tensor([[2.0, 3.0, 0.0], [0.0, 1.0, 0.0]]),
        ... )
        tensor([[0.5000, 0.7500, 0.0000],
                [0.0000, 0.2500, 0.0000]])
    """
    total = student_counts + teacher_counts.sum(dim=0)
    return torch.where(total > 0, teacher_counts / total, 0.0)


def dynamic_distillation(
    student_logits: Tensor, teacher_logits: Tensor, alpha: Tensor, reduction: LossReduction = "mean"
) -> Tensor:
    """``sum_i sum_c alpha_i^c p_i^c log(p_i^c / q^c)`` over teachers i and classes c (Flashback's dKL); may be negative.

    Args:
        student_logits: (B, C).
        teacher_logits: (K, B, C).
        alpha: (K, C), from :func:`label_count_weights`.
        reduction: ``mean`` and ``sum`` give a scalar, ``none`` gives (B,).

    Raises:
        ValueError: if ``reduction`` is none of the three.

    Example::

        >>> teachers = torch.tensor([[[3.0, 1.0]]]).log()
        >>> # the teacher speaks for class 0 alone
        >>> student, alpha = torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 0.0]])
        >>> dynamic_distillation(student, teachers, alpha)  # 3/4 log(3/2)
        tensor(0.3041)
    """
    student = at_least_float32(student_logits).log_softmax(dim=-1)
    teachers = at_least_float32(teacher_logits).log_softmax(dim=-1)
    weighted = alpha.to(teachers)[:, None] * teachers.exp()
    return reduce_losses((weighted * (teachers - student)).sum(dim=(0, -1)), reduction)


def update_global_label_counts(global_counts: Tensor, client_counts: Tensor, rounds_participated: int, gamma: float) -> Tensor:
    """Flashback's pi after a client took part: it grows by ``gamma * mu`` until the client is fully counted.

    Args:
        global_counts: pi, (C,).
        client_counts: mu of the client, (C,).
        rounds_participated: of the client, this round included.
        gamma: share counted per round, in (0, 1]: ``pi + gamma mu`` as long as ``gamma * rounds_participated <= 1``.

    Example::

        >>> counts, client = torch.tensor([10.0, 0.0]), torch.tensor([4.0, 8.0])
        >>> update_global_label_counts(counts, client, rounds_participated=2, gamma=0.5)
        tensor([12.,  4.])
        >>> # counted whole before
        >>> update_global_label_counts(counts, client, rounds_participated=3, gamma=0.5)
        tensor([10.,  0.])
    """
    if gamma * rounds_participated > 1 + 1e-12:
        return global_counts
    return global_counts + gamma * client_counts
