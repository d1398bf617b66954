"""FedNTD: clients keep the global model's knowledge of the classes other than the true one.

G. Lee, M. Jeong, Y. Shin, S. Bae, S.-Y. Yun: Preservation of the Global Knowledge by Not-True Distillation in Federated
Learning. NeurIPS 2022. arXiv 2106.03097. Equation 4. Departures: the teacher is in evaluation mode; the authors' code leaves
the mode open.
"""

from typing import Unpack

from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.functional import not_true_distillation
from fl_lightning.module import CommonArguments, FederatedModule, Net
from fl_lightning.protocol import Batch, Client, DataNeeds, Needs


class FedNTD(FederatedModule):
    """The loss plus ``beta * tau^2 * KL`` between the received and the local model over the not-true classes.

    Round:
        clients: F_k(w) + beta tau^2 KL over the not-true classes
        server: mean

    Args:
        beta: weight of the distillation, at least 0; 0 is FedAvg exactly.
        temperature: tau, above 0.

    Raises:
        ValueError: if one of them is out of range.
    """

    needs = Needs(data=DataNeeds(classes=True))

    def __init__(self, net: Net, beta: float = 1.0, temperature: float = 1.0, **common: Unpack[CommonArguments]) -> None:
        super().__init__(net, **common)
        check_range("model.beta", beta, at_least=0, hint="0 is FedAvg")
        check_range("model.temperature", temperature, above=0, hint="1 leaves logits as they are")
        self.beta, self.temperature = beta, temperature

    def client_loss(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        logits = net(batch.inputs)
        loss = self.loss(logits, batch.targets, client.label_counts)
        if self.beta == 0:
            return loss
        teacher = client.evaluate(client.received_state, lambda received: received(batch.inputs))
        return loss + self.beta * self.distillation(logits, teacher, batch.targets, client)

    def distillation(self, logits: Tensor, teacher_logits: Tensor, targets: Tensor, client: Client) -> Tensor:
        """The distillation of the received model into the local one, without ``beta``, a value a sample, (B,)."""
        return not_true_distillation(logits, teacher_logits, targets, self.temperature, reduction="none")
