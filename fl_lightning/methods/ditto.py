"""Ditto: each client trains a second model, which the global one pulls.

T. Li, S. Hu, A. Beirami, V. Smith: Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021. arXiv
2012.04221. Algorithm 1: ``min_v F_k(v) + lambda/2 ||v - w||^2`` with w as received. Departures: both models take a step on each
batch, as in the authors' code, hence as many; lambda is the same for all clients.
"""

from typing import Unpack

from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.functional.clipping import clipped
from fl_lightning.methods.second_model import SecondModel
from fl_lightning.module import CommonArguments, Net
from fl_lightning.protocol import Batch, Client, State
from fl_lightning.run.refused_data import check_groups


class Ditto(SecondModel):
    """FedAvg, and a personal model v at each client, trained by steps of plain SGD along ``g(v) + penalty (v - w_t)``.

    ``clip_local_gradients`` bounds this direction, too.

    Round:
        clients: ``F_k(w)``; and for itself ``F_k(v) + lambda/2 |v - w_t|^2``
        server: mean of w^k
        a client keeps: P
        a client uses: a second model, which the global one pulls
        the server has: a global model

    Args:
        penalty: lambda, at least 0; 0 is local training only, from the initial model.
        personal_learning_rate: rate of v, in all rounds and steps; by default that of the local optimizer, with its schedules.

    Raises:
        ValueError: if one of them is out of range.
    """

    def __init__(
        self, net: Net, penalty: float = 1.0, personal_learning_rate: float | None = None, **common: Unpack[CommonArguments]
    ) -> None:
        super().__init__(net, **common)
        check_range("model.penalty", penalty, at_least=0, hint="0 is local training only")
        if personal_learning_rate is not None:
            check_range("model.personal_learning_rate", personal_learning_rate, above=0, hint="null is that of model.optimizer")
        self.penalty, self.personal_learning_rate = penalty, personal_learning_rate

    def check_data(self) -> None:
        super().check_data()
        if self.personal_learning_rate is None:
            check_groups(self, "lr")

    def client_step(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        personal, rate = client.state["model"], self.personal_learning_rate or self.step_rate(client)
        gradients, _ = self.gradients_of_model(personal, net, batch, client)
        slopes = {
            name: gradient + self.penalty * (personal[name] - client.received_state[name])
            for name, gradient in gradients.items()
        }
        for name, slope in clipped(slopes, self.clip_local_gradients, client.resting).items():
            personal[name] = personal[name] - rate * slope
        return super().client_step(net, batch, client)

    def newcomer_model(self, shared: State) -> State:
        return shared
