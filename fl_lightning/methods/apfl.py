"""APFL: a client uses a mixture of personal and global weights, and learns how much of each.

Y. Deng, M. M. Kamani, M. Mahdavi: Adaptive Personalized Federated Learning. 2020. arXiv 2003.13461. Algorithm 1. Weights are
mixed, where FedTorch, the authors' code, mixes outputs, the same for models that are linear in their weights. Departures: all
gradients of a step, and with ``authors_code`` the slope of that code too, are taken at the values before it, where that code
goes on from stepped ones. The paper's values of the share were not verified.
"""

from typing import Any, Literal

from torch import Tensor, nn

from fl_lightning.checks import check_choice, check_range
from fl_lightning.exchange import Batch, Client, ClientState
from fl_lightning.functional.aggregation import State
from fl_lightning.methods.second_model import SecondModel
from fl_lightning.module import Net

ShareSteps = Literal["visit", "step", "never"]
Variant = Literal["paper", "authors_code"]


class APFL(SecondModel):
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
        variant: slope of the share: that of the ``paper``, or ``<v - w, share g_v + (1 - share) g_w> + 0.02 share`` of the
            ``authors_code``, where ``g_v = share g`` and ``g_w = (1 - share) g`` hold their factors already.

    Raises:
        ValueError: if one of them is out of range.
    """

    def __init__(
        self, net: Net, share: float = 0.5, share_steps: ShareSteps = "visit", variant: Variant = "paper", **common: Any
    ) -> None:
        super().__init__(net, **common)
        check_range("model.share", share, at_least=0, at_most=1, hint="0 uses the global model, 1 the personal one")
        check_choice("model.share_steps", share_steps, ShareSteps)
        check_choice("model.variant", variant, Variant)
        self.share, self.share_steps, self.variant = share, share_steps, variant

    def client_start(self, net: nn.Module, client: Client) -> dict[str, Any]:
        client.state.setdefault("share", client.received[0].new_tensor(self.share))
        return super().client_start(net, client)

    def client_step(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        personal, share = client.state["model"], client.state["share"]
        weights = {name: weight.detach() for name, weight in self.trained_weights(net).items()}
        mixture = self._mixture(personal, weights, share)
        gradients, _ = self.gradients_of_model(mixture, net, batch, client)
        slope = sum(((personal[name] - weights[name]) * gradient).sum() for name, gradient in gradients.items())
        if self.variant == "authors_code":
            slope = (share**2 + (1 - share) ** 2) * slope + 0.02 * share
        moves = {"visit": client.step == 0, "step": True, "never": False}[self.share_steps]
        client.state["share"] = (share - client.learning_rate * slope * moves).clamp(0, 1)
        steps = {name: personal[name] - client.learning_rate * share * gradient for name, gradient in gradients.items()}
        client.state["model"] = {**mixture, **steps}  # running statistics are those of the mixture
        return super().client_step(net, batch, client)

    def personal_model(self, shared: State, state: ClientState) -> State:
        kept = state.method
        return {**shared, **self._mixture(kept.get("model", {}), shared, kept.get("share", self.share))}

    def _mixture(self, personal: State, weights: State, share: Tensor | float) -> State:
        """Both models' weights mixed, and the buffers of the personal one."""
        mixed = {name: share * personal[name] + (1 - share) * weights[name] for name in personal if name in self._trained_names}
        return {**personal, **mixed}
