"""FedRS: classes that a client does not hold are restricted in its softmax.

X.-C. Li, D.-C. Zhan: FedRS: Federated Learning with Label Distribution Skew in Multi-Class Classification Tasks. KDD 2021.
Equation 5, the restricted softmax. Departures: the paper scales the inner products of features and class weights. Here the
logits are scaled, which is the same if the class layer has no bias. The authors' code also scales those of rare classes, and
all of them less with every local step.
"""

from typing import Unpack

import torch
from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.module import CommonArguments, FederatedModule, Net
from fl_lightning.protocol import Batch, Client, DataNeeds, Needs


class FedRS(FederatedModule):
    """The loss of logits ``alpha_c z_c``, with ``alpha_c = alpha`` for the classes that the client does not hold, else 1.

    Round:
        clients: F_k(w) with the logits of absent classes scaled by alpha
        server: mean

    Args:
        alpha: in [0, 1]; 1 is FedAvg exactly.

    Raises:
        ValueError: if ``alpha`` is outside.
    """

    needs = Needs(data=DataNeeds(classes=True))
    unprotected = ("the classes that a client holds",)

    def __init__(self, net: Net, alpha: float = 0.5, **common: Unpack[CommonArguments]) -> None:
        super().__init__(net, **common)
        check_range("model.alpha", alpha, at_least=0, at_most=1, hint="1 is FedAvg")
        self.alpha = alpha

    def client_loss(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        logits = net(batch.inputs)
        if self.alpha < 1:
            logits = torch.where(client.label_counts > 0, logits, self.alpha * logits)
        return self.loss(logits, batch.targets, client.label_counts)
