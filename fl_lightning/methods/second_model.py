"""The common part of methods with clients that train a second model, in addition to the one that they send."""

from typing import Any

from torch import nn

from fl_lightning.module import FederatedModule
from fl_lightning.protocol import Client, ClientState, Needs, State


class SecondModel(FederatedModule):
    """A client keeps and uses ``client.state["model"]``, weights and buffers by name; it starts as the initial model."""

    needs = Needs(initial_model=True)

    def client_start(self, net: nn.Module, client: Client) -> dict[str, Any]:
        if "model" not in client.state:
            client.state["model"] = {name: tensor.clone() for name, tensor in self.initial_model.items()}
        return super().client_start(net, client)

    def personal_model(self, shared: State, state: ClientState) -> State:
        return {**shared, **state.method.get("model", self.initial_model)}
