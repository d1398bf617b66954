"""pFedMe: clients' models move freely within a Moreau envelope around the global one.

C. T. Dinh, N. H. Tran, T. D. Nguyen: Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020. arXiv 2006.08848.
Algorithm 1. Departures: only the clients of the cohort train, while the paper and its code train all in every round. The
paper accepts any theta that solves the inner problem closely enough; ``warm_start`` follows the authors' code, which continues
from the theta of the previous batch. Its ``decay`` of 0.001 is not in the paper.
"""

from typing import Any, Unpack

from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.module import CommonArguments, FederatedModule, Net
from fl_lightning.protocol import Batch, Client, ClientState, Needs, State


class PFedMe(FederatedModule):
    """On each batch theta takes steps along ``g(theta) + penalty (theta - w)``, then w one along ``penalty (w - theta)``.

    A client uses theta, with the shared running statistics, which theta's batches move; w goes to the server. The paper's beta
    is the rate of ``server_optimizer``. ``clip_local_gradients`` and schedules of the clients' rate apply to the steps of w;
    those of theta have ``inner_rate`` and no limit.

    Round:
        clients: min over theta of ``F_k(theta) + lambda/2 |theta - w|^2``
        server: w_t + beta (mean - w_t), beta the server's rate
        a client keeps: P
        a client uses: a second model within the reach of the global one
        the server has: a global model

    Args:
        penalty: lambda, above 0. ``penalty`` times the local learning rate should be below 1, times ``inner_rate`` below 2.
        inner_steps: K, steps of theta on a batch.
        inner_rate: learning rate of these steps, above 0.
        decay: mu, of the term ``mu theta`` in these steps, at least 0.
        warm_start: whether theta continues from batch to batch within a visit, starting at the received weights; false: theta
            starts each batch at w.

    Raises:
        ValueError: if one of them is out of range.
    """

    needs = Needs(two_gradients=True)

    def __init__(
        self,
        net: Net,
        penalty: float = 15.0,
        inner_steps: int = 5,
        inner_rate: float = 0.1,
        decay: float = 0.0,
        warm_start: bool = True,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(net, **common)
        check_range("model.penalty", penalty, above=0, hint="the paper uses 15 to 30")
        check_range("model.inner_steps", inner_steps, at_least=1)
        check_range("model.inner_rate", inner_rate, above=0)
        check_range("model.decay", decay, at_least=0, hint="the authors' code has 0.001")
        self.penalty, self.inner_steps, self.inner_rate, self.decay = penalty, inner_steps, inner_rate, decay
        self.warm_start = warm_start

    def client_start(self, net: nn.Module, client: Client) -> dict[str, Any]:
        client.state["model"] = {name: weight.detach().clone() for name, weight in self.trained_weights(net).items()}
        return super().client_start(net, client)

    def client_gradients(self, net: nn.Module, batch: Batch, client: Client) -> tuple[list[Tensor], Tensor]:
        theta, losses = client.state["model"], []
        weights = {name: weight.detach() for name, weight in self.trained_weights(net).items()}
        if not self.warm_start:
            theta.update(weights)
        for _ in range(self.inner_steps):
            gradients, loss = self.gradients_of_model(theta, net, batch, client)
            losses.append(loss)
            for name, gradient in gradients.items():
                slope = gradient + self.decay * theta[name] + self.penalty * (theta[name] - weights[name])
                theta[name] = theta[name] - self.inner_rate * slope
        return [self.penalty * (weight - theta[name]) for name, weight in weights.items()], losses[0]

    def personal_model(self, shared: State, state: ClientState) -> State:
        return {**super().personal_model(shared, state), **state.method.get("model", {})}
