"""MOON: features stay near those of the global model, away from those of the client's previous one.

Q. Li, B. He, D. Song: Model-Contrastive Federated Learning. CVPR 2021. arXiv 2103.16257. Equation 3. Departures: at a client's
first visit its previous model is the global one, which adds a constant log 2 and no gradient. The authors' code takes a network
with random weights there. Features of a text, a vector for each place, are compared as one vector.
"""

from typing import Any, Unpack

from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.functional import model_contrastive_loss
from fl_lightning.models.network import expose_features, outputs_and_features
from fl_lightning.module import CommonArguments, FederatedModule, Net
from fl_lightning.protocol import Batch, Client, State, Upload


class MOON(FederatedModule):
    """The loss plus ``mu`` times the model-contrastive loss of the net's features, the inputs of its ``classifier``.

    Round:
        clients: F_k(w) + mu contrast(z; z_global, z_previous)
        server: mean
        a client keeps: P

    Args:
        mu: weight of the contrast, at least 0; 0 is FedAvg exactly.
        temperature: T, above 0.

    Raises:
        ValueError: if one of them is out of range, or the class layer is not found.
    """

    def __init__(self, net: Net, mu: float = 1.0, temperature: float = 0.5, **common: Unpack[CommonArguments]) -> None:
        super().__init__(net, **common)
        check_range("model.mu", mu, at_least=0, hint="0 is FedAvg")
        check_range("model.temperature", temperature, above=0, hint="the paper uses 0.5")
        self.mu, self.temperature = mu, temperature

    def adapt_net(self) -> None:
        super().adapt_net()
        expose_features(self.net, "whose inputs MOON compares")

    def client_loss(self, net: Any, batch: Batch, client: Client) -> Tensor:
        outputs, z = outputs_and_features(net, batch.inputs)
        loss = self.loss(outputs, batch.targets, client.label_counts)
        if self.mu == 0:
            return loss
        z_global, z_previous = (
            client.evaluate(state, lambda model: outputs_and_features(model, batch.inputs)[1])
            for state in (client.received_state, client.state.get("previous", {}))
        )
        z, z_global, z_previous = (one.flatten(1) for one in (z, z_global, z_previous))
        return loss + self.mu * model_contrastive_loss(z, z_global, z_previous, self.temperature, reduction="none")

    def client_result(self, net: nn.Module, client: Client) -> Upload:
        model: State = {**self.trained_weights(net), **dict(net.named_buffers())}
        client.state["previous"] = {name: tensor.detach().clone() for name, tensor in model.items()}
        return super().client_result(net, client)
