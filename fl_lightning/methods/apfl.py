"""APFL: a client uses a mixture of personal and global weights, and learns how much of each.

Y. Deng, M. M. Kamani, M. Mahdavi: Adaptive Personalized Federated Learning. 2020. arXiv 2003.13461. Algorithm 1. Weights are
mixed. FedTorch, the authors' code, mixes outputs, which is the same for models that are linear in their weights. It also takes
the gradients of v and of the share at weights that have already stepped, and adds 0.02 times the share to its slope. Here all
gradients are taken at the values before the step. The paper's values of the share were not verified.
"""

from typing import Any, Literal, Unpack

from torch import Tensor, nn

from fl_lightning.checks import check_choice, check_range
from fl_lightning.functional.clipping import clipped
from fl_lightning.methods.second_model import SecondModel
from fl_lightning.module import CommonArguments, Net
from fl_lightning.protocol import Batch, Client, ClientState, State
from fl_lightning.run.refused_data import check_groups

ShareSteps = Literal["visit", "step", "never"]


class APFL(SecondModel):
    """FedAvg, and weights v at each client, trained within ``share v + (1 - share) w``, the model that the client uses.

    ``v <- v - eta share g`` and ``share <- share - eta <v - w, g>``, clipped to [0, 1], with g at the mixture.
    ``clip_local_gradients`` bounds g, too.

    Round:
        clients: F_k(w); and for itself F_k(alpha v + (1 - alpha) w) over v and alpha
        server: mean of w^k
        a client keeps: P + 1
        a client uses: a mixture of personal and global weights
        the server has: a global model

    Args:
        share: initial alpha of clients, in [0, 1]; 1 is local training only, 0 is FedAvg as long as the share does not move.
        share_steps: when the share moves: at the first local step of a ``visit``, as in the authors' code, at each ``step``, or
            ``never``.

    Raises:
        ValueError: if one of them is out of range.
    """

    def __init__(
        self, net: Net, share: float = 0.5, share_steps: ShareSteps = "visit", **common: Unpack[CommonArguments]
    ) -> None:
        super().__init__(net, **common)
        check_range("model.share", share, at_least=0, at_most=1, hint="0 uses the global model, 1 the personal one")
        check_choice("model.share_steps", share_steps, ShareSteps)
        self.share, self.share_steps = share, share_steps

    def check_data(self) -> None:
        super().check_data()
        check_groups(self, "lr")

    def client_start(self, net: nn.Module, client: Client) -> dict[str, Any]:
        client.state.setdefault("share", client.received[0].new_tensor(self.share))
        return super().client_start(net, client)

    def client_step(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        personal, share = client.state["model"], client.state["share"]
        weights = {name: weight.detach() for name, weight in self.trained_weights(net).items()}
        mixture = self._mixture(personal, weights, share)
        gradients, _ = self.gradients_of_model(mixture, net, batch, client)
        gradients, rate = clipped(gradients, self.clip_local_gradients, client.resting), self.step_rate(client)
        slope = sum(((personal[name] - weights[name]) * gradient).sum() for name, gradient in gradients.items())
        moves = {"visit": client.step == 0, "step": True, "never": False}[self.share_steps]
        client.state["share"] = (share - rate * slope * moves).clamp(0, 1)
        steps = {name: personal[name] - rate * share * gradient for name, gradient in gradients.items()}
        client.state["model"] = {**mixture, **steps}  # running statistics are those of the mixture
        return super().client_step(net, batch, client)

    def personal_model(self, shared: State, state: ClientState) -> State:
        personal = super().personal_model(shared, state)
        return self._mixture(personal, {**shared, **state.weights}, state.method.get("share", self.share))

    def _mixture(self, personal: State, weights: State, share: Tensor | float) -> State:
        """Both models' weights mixed, and the buffers of the personal one."""
        mixed = {name: share * personal[name] + (1 - share) * weights[name] for name in personal if name in self.trained_names}
        return {**personal, **mixed}
