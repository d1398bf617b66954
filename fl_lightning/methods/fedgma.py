"""Gradient-masked averaging: where clients disagree on the direction, the server hardly moves.

I. Tenison, S. A. Sreeramadas, V. Mugunthan, E. Oyallon, I. Rish, E. Belilovsky: Gradient Masked Averaging for Federated
Learning. TMLR 2023. arXiv 2201.11986. Equation 4 with a soft mask.
"""

from typing import Unpack

from torch import nn

from fl_lightning.checks import check_range
from fl_lightning.module import CommonArguments, FederatedModule, Net, Update
from fl_lightning.protocol import Client, Reduction, Upload, Weighted


class FedGMA(FederatedModule):
    """Each entry of the mean change is scaled by the agreement of the clients' signs, if that is less than ``threshold``.

    Round:
        clients: F_k(w)
        server: mean, entries scaled by the agreement of signs

    Args:
        threshold: agreement ``|mean of the signs|`` below which entries are scaled, in [0, 1]; 0 is FedAvg.

    Raises:
        ValueError: if ``threshold`` is outside.
    """

    def __init__(self, net: Net, threshold: float = 0.4, **common: Unpack[CommonArguments]) -> None:
        super().__init__(net, **common)
        check_range("model.threshold", threshold, at_least=0, at_most=1, hint="0 is FedAvg")
        self.threshold = threshold

    def client_result(self, net: nn.Module, client: Client) -> Upload:
        upload = super().client_result(net, client)
        sent = upload["weights"].tensors
        signs = {name: (weight.detach() - client.received_state[name]).sign() for name, weight in sent.items()}
        # The server has the signs from the models themselves.
        return {**upload, "sign": Weighted(signs, 1.0, derived=True)}

    def aggregate(self, reduced: Reduction) -> Update:
        update = super().aggregate(reduced)
        for name, sign in reduced.mean("sign").items():
            agreement = sign.abs()
            update.pseudo_gradient[name].mul_(agreement.masked_fill(agreement >= self.threshold, 1.0))
        return update
