"""The common part of methods with clients that train a second model, in addition to the one that they send."""

from typing import Any

from torch import Tensor, nn

from fl_lightning.functional.transfers import filled, on_device
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import Client, ClientState, Needs, State


class SecondModel(FederatedModule):
    """A client keeps and uses ``client.state["model"]``, weights and buffers by name; it starts as the initial model."""

    needs = Needs(initial_model=True)

    def client_start(self, net: nn.Module, client: Client) -> dict[str, Any]:
        if "model" not in client.state:
            client.state["model"] = {name: tensor.clone() for name, tensor in self.initial_model.items()}
        carry, factors = super().client_start(net, client), self.step_factors
        if factors is None:
            return carry
        mean, first = factors.mean(client.num_steps) or 1.0, client.received[0]
        of_mean = [factors(step + 1) / mean for step in range(client.num_steps)]
        return {**carry, "rates_of_mean": on_device(of_mean, first.device, first.dtype)}

    def step_rate(self, client: Client) -> float | Tensor:
        """The rate of the local optimizer in the present step, by ``visit_lr_scheduler``."""
        if self.step_factors is None:
            return client.learning_rate
        of_mean = client.carry["rates_of_mean"]
        return client.learning_rate * of_mean.index_select(0, filled(client.step, of_mean.device)[None])[0]

    def personal_model(self, shared: State, state: ClientState) -> State:
        return {**shared, **state.method.get("model", self.initial_model)}
