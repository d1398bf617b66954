"""FedSAM: clients step along the gradient at nearby weights of higher loss, so that they end in flat minima.

Z. Qu, X. Li, R. Duan, Y. Liu, B. Tang, Z. Lu: Generalized Federated Learning via Sharpness Aware Minimization. ICML 2022.
arXiv 2206.02618. The local step is SAM: P. Foret, A. Kleiner, H. Mobahi, B. Neyshabur, ICLR 2021. Departures: running
statistics of BatchNorm follow the first pass only, as in FedSOL's code; FedDecorr's code updates them in both.
"""

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.functional.many_tensors import norm_of
from fl_lightning.module import CommonArguments, FederatedModule, Net
from fl_lightning.protocol import Batch, Client, Needs
from fl_lightning.protocol.learner import objective_gradients

_TINY = 1e-12  # keeps a gradient of zero from being divided by


class FedSAM(FederatedModule):
    """FedAvg whose local steps take the gradient g of the local objective at ``w + rho g(w) / ||g(w)||``.

    Round:
        clients: F_k(w + rho g(w)/|g(w)|), without the derivative of the shift
        server: mean

    Args:
        rho: length of the ascent, at least 0; 0 is FedAvg exactly, in one pass.

    Raises:
        ValueError: if ``rho`` is negative, or ``privacy`` is ``DPSGD``.
    """

    needs = Needs(two_gradients=True)

    def __init__(self, net: Net, rho: float = 0.05, **common: Unpack[CommonArguments]) -> None:
        super().__init__(net, **common)
        check_range("model.rho", rho, at_least=0, hint="0 is FedAvg")
        self.rho = rho

    def client_gradients(self, net: nn.Module, batch: Batch, client: Client) -> tuple[Sequence[Tensor], Tensor]:
        gradients, loss = super().client_gradients(net, batch, client)
        if self.rho == 0:
            return gradients, loss
        scale = self.rho / (norm_of(gradients) + _TINY)
        weights, statistics = self.trained_weights(net).values(), dict(net.named_buffers())
        shifted = [weight.detach() + scale * gradient for weight, gradient in zip(weights, gradients, strict=True)]
        return objective_gradients(self, net, batch, client, at=shifted, buffers=statistics)[0], loss
