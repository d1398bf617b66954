"""SCAFFOLD: control variates remove the drift from local steps.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh: SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning. ICML 2020. arXiv 1910.06378. Algorithm 1, both options. Departures: weight decay and penalties, such as
L2SP's, are in the variates of option II and not in those of option I, which hold gradients of the data's loss. With momentum,
which the paper does not have, option II divides by FedNova's ``a`` instead of K: divided by K, variates diverge where a is
above 2 K. ``server_weighting: n_weighted``, which popular code uses, weights only the models and never the variates.
"""

from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from fl_lightning.checks import check_choice
from fl_lightning.methods.fednova import AccumulatedSteps
from fl_lightning.module import ArgumentsButWeighting, FederatedModule, Net, ServerWeighting, Update
from fl_lightning.protocol import Batch, Client, Reduction, State, Upload, Weighted

Option = Literal["I", "II"]


class SCAFFOLD(FederatedModule):
    """Local steps along ``g - c_i + c``, where the variates c_i of a client and c of the server estimate their gradients.

    Round:
        clients: g - c_k + c
        server: mean; c + 1/N sum of changes of c_k
        more down: P
        more up: P
        a client keeps: P

    Args:
        option: how a client updates its variate: ``II``, from the distance that it moved, ``c_i - c + (x - y) / (a lr)`` with
            ``a`` of :class:`~fl_lightning.methods.fednova.AccumulatedSteps`, K without momentum; or ``I``, the gradient on all
            its samples at the received weights, one more pass.

    Raises:
        ValueError: if ``option`` is neither.
    """

    server_zeros = ("variate",)

    def __init__(
        self,
        net: Net,
        option: Option = "II",
        server_weighting: ServerWeighting = "uniform",
        **common: Unpack[ArgumentsButWeighting],
    ) -> None:
        super().__init__(net, server_weighting=server_weighting, **common)
        check_choice("model.option", option, Option)
        self.option = option
        self._accumulated_steps = AccumulatedSteps(self.optimizer, self.step_factors)
        self.unprotected = ("option I's gradients on all samples",) if option == "I" else ()

    def check_data(self) -> None:
        super().check_data()
        if self.option == "II":
            self._accumulated_steps.check(self, "lr")

    def broadcast(self, client: int) -> dict[str, State]:
        return {"variate": self.server_states.tensors("variate")}

    def client_start(self, net: nn.Module, client: Client) -> dict[str, Any]:
        carry = super().client_start(net, client)
        return {**carry, "full_gradient": self._full_gradient(net, client)} if self.option == "I" else carry

    def client_gradients(self, net: nn.Module, batch: Batch, client: Client) -> tuple[list[Tensor], Tensor]:
        gradients, loss = super().client_gradients(net, batch, client)
        server, client_variate = (part.get("variate", {}) for part in (client.broadcast, client.state))
        named = dict(zip(self.trained_weights(net), gradients, strict=True))
        # A weight that stays with its client has no variate.
        named |= {name: (named[name] - client_variate.get(name, 0.0)).add_(c) for name, c in server.items()}
        return list(named.values()), loss

    def client_result(self, net: nn.Module, client: Client) -> Upload:
        upload = super().client_result(net, client)
        server, client_variate = (part.get("variate", {}) for part in (client.broadcast, client.state))
        old = {name: client_variate.get(name, torch.zeros_like(c)) for name, c in server.items()}
        new = client.carry["full_gradient"] if self.option == "I" else self._from_the_change(net, client, old, server)
        if new and client.sends:  # the server's variate follows those that clients keep
            client.state["variate"] = new
        return {**upload, "variate": Weighted({name: new[name] - old[name] for name in new}, 1.0)}

    def _from_the_change(self, net: nn.Module, client: Client, old: State, server: State) -> State:
        """Option II: the mean gradient of the local steps, from the distance moved; at a rate of 0 the old variate."""
        weights = self.trained_weights(net)
        length = self._accumulated_steps(client.num_steps) * client.learning_rate
        if length == 0:
            return old
        change = {name: client.received_state[name] - weight.detach() for name, weight in weights.items()}
        return {name: old[name] - server[name] + change[name] / length for name in old}

    def _full_gradient(self, net: nn.Module, client: Client) -> State:
        """Option I: the gradient on all the client's samples; the net's buffers do not change."""
        before = {name: buffer.clone() for name, buffer in net.named_buffers()}
        total: list[Tensor] = []
        for batch in client.samples():

            def objective(batch: Batch = batch) -> tuple[Tensor, Tensor]:
                loss = self.client_loss(net, batch, client).sum() / client.num_train
                return loss, loss

            gradients, _ = client.differentiate(objective)
            total = [a + b for a, b in zip(total, gradients, strict=True)] if total else list(gradients)
        for name, buffer in net.named_buffers():
            buffer.copy_(before[name])
        named = dict(zip(self.trained_weights(net), total, strict=True))
        return {name: named[name] for name in client.broadcast.get("variate", {})}

    def aggregate(self, reduced: Reduction) -> Update:
        # Only sampled clients have changed theirs: the mean change, times their share of all clients.
        share = reduced.total_weight("variate") / self.data.num_clients
        variates = self.server_states.tensors("variate")
        for name, change in reduced.mean("variate").items():
            variates[name].add_(share * change)
        return super().aggregate(reduced)
