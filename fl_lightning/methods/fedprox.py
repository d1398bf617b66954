"""FedProx: clients are pulled towards the weights that they received.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: Federated Optimization in Heterogeneous Networks. MLSys 2020.
arXiv 1812.06127. Equation 2. Departures: none; clients do all their local steps.
"""

from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.module import CommonArguments, FederatedModule, Net
from fl_lightning.protocol import Client


class FedProx(FederatedModule):
    """Clients minimise ``F_k(w) + mu/2 * ||w - w_t||^2``; weights that stay with their client are not pulled.

    Round:
        clients: ``F_k(w) + mu/2 |w - w_t|^2``
        server: mean

    Args:
        mu: strength of the pull, at least 0; 0 is FedAvg exactly. Papers without the factor 1/2 give half of this.

    Raises:
        ValueError: if ``mu`` is negative.
    """

    def __init__(self, net: Net, mu: float = 0.01, **common: Unpack[CommonArguments]) -> None:
        super().__init__(net, **common)
        check_range("model.mu", mu, at_least=0, hint="0 is without a pull")
        self.mu = mu

    def client_penalty(self, net: nn.Module, client: Client) -> Tensor | float:
        if self.mu == 0:
            return 0.0
        # Squares, not norms: the gradient of a norm is undefined where a client starts. One pass forward, one backward.
        weights = {name: weight for name, weight in self.trained_weights(net).items() if not self.is_personal(name)}
        shared = [(weight, client.received_state[name]) for name, weight in weights.items()]
        return self.mu / 2 * torch.stack([F.mse_loss(*pair, reduction="sum") for pair in shared]).sum() if shared else 0.0
