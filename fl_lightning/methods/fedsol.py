"""FedSOL: the local gradient is taken at weights perturbed to increase the distillation loss from the global model.

G. Lee, M. Jeong, S. Kim, J. Oh, S.-Y. Yun: FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in Federated
Learning. CVPR 2024. arXiv 2308.12532. The adaptive form of the authors' code. Departures: running statistics of BatchNorm
follow the pass of the local objective, at the shifted weights, or at the client's under a learner of tasks that takes gradients
there; in the code they follow the pass of the distillation. The teacher is in evaluation mode; the code leaves the mode open.
"""

from collections.abc import Sequence
from typing import Unpack

import torch.nn.functional as F
from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.functional import ensemble_distillation
from fl_lightning.functional.many_tensors import norm_of
from fl_lightning.module import CommonArguments, FederatedModule, Net
from fl_lightning.protocol import Batch, Client, DataNeeds, Learner, Needs, mean_gradient, overridden
from fl_lightning.protocol.learner import objective_gradients

_TEMPERATURE = 3.0  # of the distillation in the authors' code
_TINY = 1e-12


class FedSOL(FederatedModule):
    """Local steps along the gradient of the local objective at ``w + rho L g_p / ||g_p||``.

    ``g_p`` is the gradient of the distillation ``KL(received || local)`` of softmaxes at temperature 3. L scales each entry by
    the distance of the weight from its received value, normalised over the first dimension of the tensor. At the received
    weights L is 0, so the first step is FedAvg's.

    Round:
        clients: F_k(w + rho L g_p/|g_p|), g_p the gradient of KL(w_t || w), L from |w - w_t|
        server: mean

    Args:
        rho: strength of the shift, at least 0; 0 is FedAvg exactly.

    Raises:
        ValueError: if ``rho`` is negative, or ``privacy`` is ``DPSGD``.
    """

    needs = Needs(two_gradients=True, data=DataNeeds(classes=True))

    def __init__(self, net: Net, rho: float = 1.0, **common: Unpack[CommonArguments]) -> None:
        super().__init__(net, **common)
        check_range("model.rho", rho, at_least=0, hint="0 is FedAvg")
        self.rho = rho
        # Synaptic Intelligence takes the gradients at the client's weights along its path.
        self._is_followed = bool(overridden(self.tasks, Learner.client_gradients))

    def client_gradients(self, net: nn.Module, batch: Batch, client: Client) -> tuple[Sequence[Tensor], Tensor]:
        if self.rho == 0:
            return super().client_gradients(net, batch, client)
        buffers = None
        if self._is_followed:  # that pass moves the running statistics
            super().client_gradients(net, batch, client)
            buffers = dict(net.named_buffers())
        return objective_gradients(self, net, batch, client, at=self._shifted(net, batch, client), buffers=buffers)

    def _shifted(self, net: nn.Module, batch: Batch, client: Client) -> list[Tensor]:
        teacher = client.evaluate(client.received_state, lambda received: received(batch.inputs))
        buffers = dict(net.named_buffers())

        def distance() -> Tensor:
            return ensemble_distillation(net(batch.inputs), teacher[None], _TEMPERATURE, reduction="none")

        pull, _ = mean_gradient(net, batch, client, distance, buffers=buffers)
        scale, shifted = self.rho / (norm_of(pull) + _TINY), []
        for (name, weight), gradient in zip(self.trained_weights(net).items(), pull, strict=True):
            moved = (weight.detach() - client.received_state[name]).abs()
            shifted.append(weight.detach() + F.normalize(moved, dim=0) * gradient * scale)
        return shifted
