"""FedACG: clients start ahead of the global model, where its momentum points, and are pulled towards that point.

G. Kim, J. Kim, B. Han: Communication-Efficient Federated Learning with Accelerated Client Gradient. CVPR 2024. arXiv
2201.03172. Departures: clients are weighted as ``server_weighting`` says, equally in the authors' code, which also leaves out
the paper's factor 1/2 of the pull and clips gradients at norm 10.
"""

from typing import Unpack

import torch

from fl_lightning.checks import check_range
from fl_lightning.methods.fedprox import FedProx
from fl_lightning.module import CommonArguments, Net, Update
from fl_lightning.protocol import Reduction, State


class FedACG(FedProx):
    """Clients receive ``v = w_t + momentum m``; with D the mean of their changes from v, m becomes ``momentum m + D``.

    With the default server optimizer the new global model is ``w_t + m``, the mean of the clients' models. Between rounds the
    net holds w, during a round v.

    Round:
        clients: ``F_k(w) + mu/2 |w - v|^2`` from v = w_t + lambda m
        server: m of lambda m + mean change from v; w_t + m

    Args:
        momentum: lambda, in [0, 1); 0 is FedProx.
        mu: strength of the pull towards v, the paper's beta, at least 0. The default is the weight in the authors' config; as
            their code has no factor 1/2, 2e-3 is its pull.

    Raises:
        ValueError: if one of them is out of range.
    """

    server_zeros = ("momentum",)

    def __init__(self, net: Net, momentum: float = 0.85, mu: float = 1e-3, **common: Unpack[CommonArguments]) -> None:
        super().__init__(net, mu, **common)
        check_range("model.momentum", momentum, at_least=0, below=1, hint="the paper uses 0.85")
        self.momentum = momentum
        self._behind: State = {}  # w while the net holds v: within a round, so in no checkpoint

    @torch.no_grad()
    def start_round(self, round: int) -> None:
        super().start_round(round)
        weights = dict(self.net.named_parameters())
        momentum = self.server_states.tensors("momentum")
        self._behind = {name: weights[name].detach().clone() for name in momentum}
        for name, tensor in momentum.items():
            weights[name].add_(tensor, alpha=self.momentum)

    def aggregate(self, reduced: Reduction) -> Update:
        update = super().aggregate(reduced)
        for name, tensor in self.server_states.tensors("momentum").items():
            tensor.mul_(self.momentum).sub_(update.pseudo_gradient[name])
        return update

    def server_step(self, update: Update | None) -> None:
        if update is None:
            self._step_back()
        super().server_step(update)

    def after_undo(self) -> None:
        super().after_undo()
        self._step_back()

    @torch.no_grad()
    def _step_back(self) -> None:
        """The net holds w again, after a round that does not count."""
        for name, weight in self.net.named_parameters():
            if name in self._behind:
                weight.copy_(self._behind[name])
