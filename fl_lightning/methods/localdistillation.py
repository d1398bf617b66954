"""Local distillation: clients learn from their labels and from the predictions of the model that they received.

Aljahdali, Abdelmoniem, Canini, Horváth, "Flashback: Understanding and Mitigating Forgetting in Federated Learning",
arXiv 2402.05558, equation 1, whose scalar ``alpha`` Flashback replaces by label counts. The teacher is the received global
model, as at Flashback's clients. The equation has no temperature. Departures: none; the paper states no value of ``alpha``.
"""

from typing import Unpack

from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.functional import ensemble_distillation
from fl_lightning.module import CommonArguments, FederatedModule, Net
from fl_lightning.protocol import Batch, Client, DataNeeds, Needs


class LocalDistillation(FederatedModule):
    """``alpha`` times the loss plus ``1 - alpha`` times ``KL(p || q)`` of the received model's p and the local model's q.

    Round:
        clients: alpha F_k(w) + (1 - alpha) KL of w_t to w
        server: mean

    Args:
        alpha: share of the labels, in [0, 1]; 1 is FedAvg exactly, 0 learns nothing.

    Raises:
        ValueError: if ``alpha`` is outside.
    """

    needs = Needs(data=DataNeeds(classes=True))

    def __init__(self, net: Net, alpha: float = 0.5, **common: Unpack[CommonArguments]) -> None:
        super().__init__(net, **common)
        check_range("model.alpha", alpha, at_least=0, at_most=1, hint="1 is FedAvg")
        self.alpha = alpha

    def client_loss(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        logits = net(batch.inputs)
        loss = self.loss(logits, batch.targets, client.label_counts)
        if self.alpha == 1:
            return loss
        teacher = client.evaluate(client.received_state, lambda received: received(batch.inputs))
        return self.alpha * loss + (1 - self.alpha) * ensemble_distillation(logits, teacher[None], reduction="none")
