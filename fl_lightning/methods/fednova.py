"""FedNova: clients that take more steps do not pull harder.

J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization. NeurIPS 2020. arXiv 2007.07481. Equation 8 with the accumulation of SGD, with and without momentum.
"""

from typing import Any

import torch
from torch import nn

from fl_lightning.clients import Client, Reduction, Upload, Weighted
from fl_lightning.module import FederatedModule, Net, Update


class FedNova(FederatedModule):
    """The server moves by the mean number of local steps times the mean of the clients' *normalised* changes.

    A client divides its change by ``a``, how often its gradients count in it: the number of local steps for plain SGD. With
    equal ``a`` everywhere this is FedAvg.

    Raises:
        ValueError: if the local optimizer is not SGD, or SGD with Nesterov's momentum or dampening.
    """

    def __init__(self, net: Net, **common: Any) -> None:
        super().__init__(net, **common)
        optimizer = self.optimizer([nn.Parameter(torch.zeros(1))])
        if type(optimizer) is not torch.optim.SGD:
            raise ValueError(
                f"model.optimizer is {type(optimizer).__name__}, but FedNova knows how SGD adds up gradients: use SGD"
            )
        for name in ("nesterov", "dampening"):
            if optimizer.defaults[name]:
                raise ValueError(
                    f"model.optimizer.{name} is {optimizer.defaults[name]}, but FedNova knows plain momentum: leave it out"
                )
        self._momentum: float = optimizer.defaults["momentum"]
        if not 0 <= self._momentum < 1:
            raise ValueError(f"model.optimizer.momentum is {self._momentum}, must be at least 0 and below 1 for FedNova")

    def client_result(self, net: nn.Module, client: Client) -> Upload:
        upload = super().client_result(net, client)
        a = self.accumulation(int(client.num_steps))
        sent, weight = upload["weights"].tensors, upload["weights"].weight
        changes = {name: (client.received_state[name] - own.detach()) / a for name, own in sent.items()}
        precision = torch.promote_types(torch.float32, client.received[0].dtype)
        accumulation = {"a": torch.tensor(a, dtype=precision, device=client.label_counts.device)}
        return {**upload, "weights": Weighted(changes, weight), "accumulation": Weighted(accumulation, weight)}

    def accumulation(self, steps: int) -> float:
        """``||a||_1`` of so many local steps: the sum of how often each gradient counts."""
        rho = self._momentum
        return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)

    def aggregate(self, reduced: Reduction) -> Update:
        effective_steps = reduced.mean("accumulation")["a"]
        weights = dict(self.net.named_parameters())
        mean = reduced.mean("weights")
        gradient = {name: torch.empty_like(weights[name]).copy_(effective_steps * change) for name, change in mean.items()}
        return Update(gradient, reduced.mean("buffers"))
