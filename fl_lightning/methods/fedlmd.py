"""FedLMD: clients learn the classes that they have few samples of from the global model.

J. Lu, S. Li, K. Bao, P. Wang, Z. Qian, S. Ge: Federated Learning with Label-Masking Distillation. ACM Multimedia 2023. arXiv
2409.13136. As in the authors' code, which is FedNTD's with a second mask. Departures: where a sample's true class and its
client's majority are all classes, the teacher has nothing to tell and the term is 0; the code pulls towards the true class.
"""

from torch import Tensor

from fl_lightning.functional import not_true_distillation
from fl_lightning.methods.fedntd import FedNTD
from fl_lightning.protocol import Client


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
        is_major = counts * len(counts) > counts.sum()
        return not_true_distillation(logits, teacher_logits, targets, self.temperature, "none", hidden=is_major)
