"""FedVARP: the server uses the last known changes of absent clients.

D. Jhunjhunwala, P. Sharma, A. Nagarkatti, G. Joshi: FedVARP: Tackling the Variance Due to Partial Client Participation in
Federated Learning. UAI 2022. arXiv 2207.14130. Algorithm 1. Departures: the paper's server stores the last change y_k of each
client; here it is part of the client's stored state, and never sent. ``server_weighting: n_weighted`` weights only means over
the cohort; y is the plain mean over all clients.
"""

from typing import Unpack

import torch
from torch import nn

from fl_lightning.module import ArgumentsButWeighting, FederatedModule, Net, ServerWeighting, Update
from fl_lightning.protocol import Client, Reduction, State, Upload, Weighted


class FedVARP(FederatedModule):
    """The server's step is ``y + mean over the cohort of (D_k - y_k)``: y_k is client k's last change, y their mean over all.

    A client that never took part has the change 0.

    Round:
        clients: F_k(w)
        server: w_t + y + mean of (D_k - y_k), D_k = w^k - w_t; y_k is D_k, y the mean of all y_k
        a client keeps: P
    """

    server_zeros = ("mean_change",)

    def __init__(
        self, net: Net, server_weighting: ServerWeighting = "uniform", **common: Unpack[ArgumentsButWeighting]
    ) -> None:
        super().__init__(net, server_weighting=server_weighting, **common)

    def client_result(self, net: nn.Module, client: Client) -> Upload:
        upload = super().client_result(net, client)
        if not client.sends:
            return upload
        last: State = client.state.get("change", {})
        weights, names = self.trained_weights(net), self.server_states.tensors("mean_change")
        change = {name: weights[name].detach() - client.received_state[name] for name in names}
        before = {name: last.get(name, torch.zeros_like(tensor)) for name, tensor in change.items()}
        client.state["change"] = change
        news = {name: change[name] - before[name] for name in change}
        # The server has both from the model and what it stored.
        before_weighted = Weighted(before, self.update_weight(client), derived=True)
        return {**upload, "before": before_weighted, "news": Weighted(news, 1.0, derived=True)}

    def aggregate(self, reduced: Reduction) -> Update:
        update = super().aggregate(reduced)
        before, news = reduced.mean("before"), reduced.mean("news")
        share = reduced.total_weight("news") / self.data.num_clients
        for name, mean in self.server_states.tensors("mean_change").items():
            update.pseudo_gradient[name].add_(before[name] - mean)
            mean.add_(share * news[name])
        return update
