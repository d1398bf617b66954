"""FedDyn: dynamic regularisation makes local and global optima agree.

D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama: Federated Learning Based on Dynamic
Regularization. ICLR 2021. arXiv 2111.04263. Algorithm 1. ``server_weighting: n_weighted`` weights the mean of the models, as
some code does; the server's state h always takes the plain sum over clients.
"""

from typing import Unpack

from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.module import ArgumentsButWeighting, FederatedModule, Net, ServerWeighting, Update
from fl_lightning.protocol import Batch, Client, Reduction, Upload, Weighted


class FedDyn(FederatedModule):
    """Clients minimise ``F_k(w) - <g_k, w> + alpha/2 * ||w - w_t||^2``, g_k the gradient that their last visit ended with.

    With another server optimizer than the default the global model does not become the mean less h/alpha.

    Round:
        clients: ``F_k(w) - <g_k, w> + alpha/2 |w - w_t|^2``
        server: mean less h/alpha
        a client keeps: P

    Args:
        alpha: above 0; the authors' code for CIFAR-10 has 0.01.

    Raises:
        ValueError: if ``alpha`` is not above 0.
    """

    server_zeros = ("h",)

    def __init__(
        self,
        net: Net,
        alpha: float = 0.1,
        server_weighting: ServerWeighting = "uniform",
        **common: Unpack[ArgumentsButWeighting],
    ) -> None:
        super().__init__(net, server_weighting=server_weighting, **common)
        check_range("model.alpha", alpha, above=0, hint="such as 0.1")
        self.alpha = alpha

    def client_gradients(self, net: nn.Module, batch: Batch, client: Client) -> tuple[list[Tensor], Tensor]:
        """The penalty's gradient, ``alpha * (w - w_t) - g_k``, is added directly, which saves passes over all weights."""
        gradients, loss = super().client_gradients(net, batch, client)
        accumulated, pulled = client.state.get("g", {}), []
        for (name, weight), gradient in zip(self.trained_weights(net).items(), gradients, strict=True):
            if self.is_personal(name):
                pulled.append(gradient)
                continue
            gradient = gradient.add(weight.detach() - client.received_state[name], alpha=self.alpha)
            pulled.append(gradient.sub_(accumulated[name]) if name in accumulated else gradient)
        return pulled, loss

    def client_result(self, net: nn.Module, client: Client) -> Upload:
        if not client.sends:  # h follows what clients keep
            return super().client_result(net, client)
        change = {name: weight.detach() - client.received_state[name] for name, weight in self.trained_weights(net).items()}
        moved = {name: change[name] for name in self.server_states.tensors("h")}
        accumulated = client.state.get("g", {})
        client.state["g"] = {name: accumulated.get(name, 0.0) - self.alpha * moved[name] for name in moved}
        # The plain sum that h takes: the server has it from the models.
        return {**super().client_result(net, client), "moved": Weighted(moved, 1.0, derived=True)}

    def aggregate(self, reduced: Reduction) -> Update:
        update = super().aggregate(reduced)
        share = reduced.total_weight("moved") / self.data.num_clients
        state = self.server_states.tensors("h")
        for name, moved in reduced.mean("moved").items():
            state[name].sub_(self.alpha * share * moved)
            update.pseudo_gradient[name].add_(state[name] / self.alpha)
        return update
