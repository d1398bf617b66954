"""FedLMD: clients learn the classes that they have few samples of from the global model.

J. Lu, S. Li, K. Bao, P. Wang, Z. Qian, S. Ge: Federated Learning with Label-Masking Distillation. ACM Multimedia 2023. arXiv
2409.13136. As in the authors' code, which is FedNTD's with a second mask. Departures: where a sample's true class and its
client's majority are all classes, the teacher has nothing to tell and the term is 0; the code pulls towards the true class.
"""

import torch
from torch import Tensor

from fl_lightning.functional.loss_reductions import at_least_float32
from fl_lightning.methods.fedntd import FedNTD
from fl_lightning.protocol import Client

_NONE = float("-inf")


class FedLMD(FedNTD):
    """The loss plus ``beta tau^2 KL(p || q)`` of the received model's p and the local model's q.

    p is over the classes outside the majority and other than the true one; q over all but the true one. The majority are the
    classes of which the client has more training samples than on average over all C classes.

    Round:
        clients: F_k(w) + beta tau^2 KL, the teacher without the client's majority and the true class
        server: mean

    Args:
        beta: weight of the distillation, at least 0; 0 is FedAvg exactly.
        temperature: tau, above 0.

    Raises:
        ValueError: if one of them is out of range.
    """

    unprotected = ("the majority classes",)

    def distillation(self, logits: Tensor, teacher_logits: Tensor, targets: Tensor, client: Client) -> Tensor:
        counts = client.train_label_counts
        is_major = counts > counts.sum() / len(counts)
        return label_masking_distillation(logits, teacher_logits, targets, is_major, self.temperature)


def label_masking_distillation(
    student_logits: Tensor, teacher_logits: Tensor, target: Tensor, is_major: Tensor, temperature: float = 1.0
) -> Tensor:
    """``tau^2 KL(p || q)``, (B,): teacher p without majority and true class, student q without the true class.

    Args:
        student_logits, teacher_logits: (B, C).
        target: (B,) class indices.
        is_major: (C,), true for the classes that the teacher leaves out.
        temperature: tau, above 0.
    """
    is_true = target[..., None] == torch.arange(student_logits.shape[-1], device=target.device)
    is_masked = is_true | is_major
    student = (at_least_float32(student_logits) / temperature).masked_fill(is_true, _NONE).log_softmax(dim=-1)
    teacher = (at_least_float32(teacher_logits) / temperature).masked_fill(is_masked, _NONE).log_softmax(dim=-1)
    # Where nothing is left, the softmax is not a number; masked entries count 0.
    teacher = teacher.masked_fill(is_masked, _NONE)
    difference = (teacher - student).masked_fill(is_masked, 0.0)
    return temperature**2 * (teacher.exp() * difference).sum(dim=-1)
