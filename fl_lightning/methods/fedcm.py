"""FedCM: every local step is mixed with the mean direction of the previous round.

J. Xu, S. Wang, L. Wang, A. C.-C. Yao: FedCM: Federated Learning with Client-level Momentum. arXiv 2106.10874. Algorithm 1.
Departures: clients may take different numbers of steps, so each divides its change by its own number before the mean. With
momentum in the local optimizer, which the paper does not have, that number is FedNova's ``a``: divided by K, D diverges where
(1 - alpha) a is above K. The server's rate multiplies the mean change of the clients, so 1 is FedAvg's server.
"""

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.methods.fednova import AccumulatedSteps
from fl_lightning.module import CommonArguments, FederatedModule, Net, Update
from fl_lightning.protocol import Batch, Client, Reduction, State, Upload, Weighted


class FedCM(FederatedModule):
    """Local steps along ``alpha g + (1 - alpha) D``, D the mean over the last cohort of ``(w_t - w^k) / (a_k lr)``.

    ``a_k`` is that of :class:`~fl_lightning.methods.fednova.AccumulatedSteps`, K_k without momentum. D is 0 in the first
    round, so its steps are ``alpha`` times as long as FedAvg's. Weights that stay with their client step along g. A client with
    a rate of 0 sends the D that it received.

    Round:
        clients: alpha g + (1 - alpha) D
        server: mean; D the mean of (w_t - w^k)/(a_k eta)
        more down: P

    Args:
        alpha: share of the client's own gradient, above 0 and at most 1; 1 is FedAvg.

    Raises:
        ValueError: if ``alpha`` is outside.
    """

    server_zeros = ("direction",)

    def __init__(self, net: Net, alpha: float = 0.1, **common: Unpack[CommonArguments]) -> None:
        super().__init__(net, **common)
        check_range("model.alpha", alpha, above=0, at_most=1, hint="1 is without momentum")
        self.alpha = alpha
        self._accumulated_steps = AccumulatedSteps(self.optimizer, self.step_factors)

    def check_data(self) -> None:
        super().check_data()
        self._accumulated_steps.check(self, "lr")

    def broadcast(self, client: int) -> dict[str, State]:
        return {"direction": self.server_states.tensors("direction")}

    def client_gradients(self, net: nn.Module, batch: Batch, client: Client) -> tuple[Sequence[Tensor], Tensor]:
        gradients, loss = super().client_gradients(net, batch, client)
        named, directions = dict(zip(self.trained_weights(net), gradients, strict=True)), client.broadcast.get("direction", {})
        named |= {name: (self.alpha * named[name]).add_(d, alpha=1 - self.alpha) for name, d in directions.items()}
        return list(named.values()), loss

    def client_result(self, net: nn.Module, client: Client) -> Upload:
        upload, weights = super().client_result(net, client), self.trained_weights(net)
        length = self._accumulated_steps(client.num_steps) * client.learning_rate
        if length == 0:  # the client has not moved, and leaves D as it is
            moved = client.broadcast.get("direction", {})
        else:
            moved = {
                name: (client.received_state[name] - weights[name].detach()) / length
                for name in self.server_states.tensors("direction")
            }
        # The server has it from the models and the number of steps.
        return {**upload, "direction": Weighted(moved, self.update_weight(client), derived=True)}

    def aggregate(self, reduced: Reduction) -> Update:
        direction = self.server_states.tensors("direction")
        for name, mean in reduced.mean("direction").items():
            direction[name].copy_(mean)
        return super().aggregate(reduced)
