"""FedCurv: weights that matter to other clients are hard to move.

N. Shoham, T. Avidor, A. Keren, N. Israel, D. Benditkis, L. Mor-Yosef, I. Zeitak: Overcoming Forgetting in Federated Learning on
Non-IID Data. 2019. arXiv 1910.07796. Equation 3. As in the paper, a client's penalty leaves out its own term; popular code
keeps it.
"""

from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from fl_lightning.checks import check_choice, check_range
from fl_lightning.module import CommonArguments, FederatedModule, Net, Update
from fl_lightning.protocol import Batch, Client, Reduction, State, Upload, Weighted

_KINDS = ("fisher", "anchor")  # the sums over clients of F and of F theta

Remembered = Literal["last_round", "all"]


class FedCurv(FederatedModule):
    """The loss plus ``penalty * sum_j sum_i F_ji (w_i - theta_ji)^2`` over other clients j, no half.

    theta_j are the weights that client j sent, F_j its empirical Fisher information there. The server keeps the sums of F and
    of ``F theta``, and a client takes its terms out.

    Round:
        clients: F_k(w) + lambda sum over j, i of F_ji (w_i - theta_ji)^2
        server: mean; sums of F and F theta
        more down: 2P
        more up: P
        a client keeps: 2P

    Args:
        penalty: lambda, at least 0; 0 is FedAvg.
        remember: the terms that count: those of the ``last_round`` only, as in the FedReg paper's code, or the latest of
            ``all`` clients that ever took part, as in the paper, which sends 2P more up.

    Raises:
        ValueError: if ``penalty`` is negative or ``remember`` unknown.
    """

    unprotected = ("the Fisher information",)
    server_zeros = _KINDS

    def __init__(
        self,
        net: Net,
        penalty: float = 1e-4,
        remember: Remembered = "last_round",
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(net, **common)
        check_range("model.penalty", penalty, at_least=0, hint="0 is FedAvg")
        check_choice("model.remember", remember, Remembered)
        self.penalty, self.remember = penalty, remember

    def broadcast(self, client: int) -> dict[str, State]:
        return {kind: self.server_states.tensors(kind) for kind in _KINDS}

    def client_start(self, net: nn.Module, client: Client) -> dict[str, Any]:
        """The sums over the other clients; a client that does not receive has none."""
        others = self._others(client) if self.penalty > 0 else {}
        return {**super().client_start(net, client), **others}

    def client_gradients(self, net: nn.Module, batch: Batch, client: Client) -> tuple[list[Tensor], Tensor]:
        """The penalty's gradient, ``2 lambda (sum F_j w - sum F_j theta_j)``, is added directly, which saves many passes."""
        gradients, loss = super().client_gradients(net, batch, client)
        weights, (fisher, anchor) = self.trained_weights(net), (client.carry.get(kind, {}) for kind in _KINDS)
        named = dict(zip(weights, gradients, strict=True))
        for name, importance in fisher.items():
            named[name] = named[name].addcmul(importance, weights[name].detach(), value=2 * self.penalty)
            named[name].sub_(anchor[name], alpha=2 * self.penalty)
        return list(named.values()), loss

    def _others(self, client: Client) -> dict[str, State]:
        """The server's sums without what the client itself has sent."""
        received = {kind: client.broadcast[kind] for kind in _KINDS if kind in client.broadcast}
        if "round" not in client.state:
            return received
        counts = client.state["round"] == client.round - 1 if self.remember == "last_round" else client.state["round"] > 0
        return {
            kind: {name: total.addcmul(client.state[kind][name], counts, value=-1) for name, total in totals.items()}
            for kind, totals in received.items()
        }

    def client_result(self, net: nn.Module, client: Client) -> Upload:
        if "fisher" not in client.broadcast or not client.sends:  # the server does not learn of it
            return super().client_result(net, client)
        fisher = self.tasks.fisher(net, client)
        fisher = {name: fisher[name] for name in self.server_states.tensors("fisher")}
        anchor = {name: fisher[name] * weight.detach() for name, weight in self.trained_weights(net).items() if name in fisher}
        upload = super().client_result(net, client)
        for kind, new in zip(_KINDS, (fisher, anchor), strict=True):
            change = new
            if self.remember == "all":
                old = client.state.get(kind, {})
                change = {name: tensor - old.get(name, 0.0) for name, tensor in new.items()}
            # The server has F theta from F and the weights, where both are this round's.
            derived = kind == "anchor" and self.remember == "last_round"
            upload[kind] = Weighted(change, 1.0, derived)
            client.state[kind] = new
        client.state["round"] = torch.full((), client.round, device=client.label_counts.device)
        return upload

    def aggregate(self, reduced: Reduction) -> Update:
        self._forget()
        for kind in _KINDS:
            sums, total = self.server_states.tensors(kind), reduced.total_weight(kind)
            for name, mean in reduced.mean(kind).items():
                sums[name].add_(total * mean)
        return super().aggregate(reduced)

    def server_step(self, update: Update | None) -> None:
        if update is None:
            self._forget()
        super().server_step(update)

    def _forget(self) -> None:
        """A round is over: if only the last one counts, drop the rounds before it."""
        if self.remember == "last_round":
            for kind in _KINDS:
                for tensor in self.server_states.tensors(kind).values():
                    tensor.zero_()
