"""APFL: a client uses a mixture of personal and global weights, and learns how much of each.

Y. Deng, M. M. Kamani, M. Mahdavi: Adaptive Personalized Federated Learning. 2020. arXiv 2003.13461. Algorithm 1. Weights are
mixed, where FedTorch, the authors' code, mixes outputs, the same for models that are linear in their weights. Departures: all
gradients of a step are taken at the values before it; the slope of the share has no term ``0.02 alpha``, which that code adds
and the paper does not have. The paper's values of the share were not verified.
"""

from typing import Any, Literal

from torch import Tensor, nn

from fl_lightning.checks import check_choice, check_range
from fl_lightning.exchange import Batch, Client, ClientState, Needs
from fl_lightning.functional.aggregation import State
from fl_lightning.module import FederatedModule, Net

ShareSteps = Literal["visit", "step", "never"]


class APFL(FederatedModule):
    """FedAvg, and with it weights v of each client, trained within ``share v + (1 - share) w``, the model that it uses.

    ``v <- v - eta share g`` and ``share <- share - eta <v - w, g>``, clipped to [0, 1], with g at the mixture.

    Round:
        clients: F_k(w); and for itself F_k(alpha v + (1 - alpha) w) over v and alpha
        server: mean of w^k
        a client keeps: P + 1
        a client uses: a mixture of personal and global weights
        the server has: a global model

    Args:
        share: alpha that clients begin with, in [0, 1]; 1 is training alone, 0 FedAvg, where it stays so.
        share_steps: when the share moves: at the first local step of a ``visit``, as in the authors' code, at each ``step``, or
            ``never``.

    Raises:
        ValueError: if one of them is out of range.
    """

    needs = Needs(initial_model=True)

    def __init__(self, net: Net, share: float = 0.5, share_steps: ShareSteps = "visit", **common: Any) -> None:
        super().__init__(net, **common)
        check_range("model.share", share, at_least=0, at_most=1, hint="0 uses the global model, 1 the personal one")
        check_choice("model.share_steps", share_steps, ShareSteps)
        self.share, self.share_steps = share, share_steps

    def client_start(self, net: nn.Module, client: Client) -> dict[str, Any]:
        if "model" not in client.state:
            client.state["model"] = {name: tensor.clone() for name, tensor in self.initial_model.items()}
            client.state["share"] = client.received[0].new_tensor(self.share)
        return super().client_start(net, client)

    def client_step(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        personal, share = client.state["model"], client.state["share"]
        weights = {name: weight.detach() for name, weight in self.trained_weights(net).items()}
        mixture = self._mixture(personal, weights, share)
        gradients, _ = self.gradients_of_model(mixture, net, batch, client)
        slope = sum(((personal[name] - weights[name]) * gradient).sum() for name, gradient in gradients.items())
        moves = {"visit": client.step == 0, "step": True, "never": False}[self.share_steps]
        client.state["share"] = (share - client.learning_rate * slope * moves).clamp(0, 1)
        steps = {name: personal[name] - client.learning_rate * share * gradient for name, gradient in gradients.items()}
        client.state["model"] = {**mixture, **steps}  # running statistics are those of the mixture
        return super().client_step(net, batch, client)

    def personal_model(self, shared: State, state: ClientState) -> State:
        if not state.method:
            return shared
        return {**shared, **self._mixture(state.method["model"], shared, state.method["share"])}

    def _mixture(self, personal: State, weights: State, share: Tensor) -> State:
        """Both models' weights mixed, and the buffers of the personal one."""
        mixed = {name: share * personal[name] + (1 - share) * weights[name] for name in personal if name in self._trained_names}
        return {**personal, **mixed}
