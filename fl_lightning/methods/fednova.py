"""FedNova: updates are normalised, so that clients with more steps do not dominate.

J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization. NeurIPS 2020. arXiv 2007.07481. Equation 8 with the accumulation of SGD, with and without momentum, and of SGD
with FedProx's proximal term. Departure: momentum and the proximal term together are refused, because the paper does not give
their accumulation.
"""

from typing import Unpack

import torch
from torch import nn

from fl_lightning.checks import check_range
from fl_lightning.functional.schedules import RateFactors
from fl_lightning.methods.fedprox import FedProx
from fl_lightning.module import CommonArguments, FederatedModule, Net, Update
from fl_lightning.optimizers import OptimizerBuilder
from fl_lightning.protocol import Client, Reduction, State, Upload, Weighted
from fl_lightning.run.refused_data import check_groups

_ACCUMULATING = ("momentum", "dampening", "nesterov")
"""Settings of SGD that decide how often a gradient counts."""


class FedNova(FedProx):
    """The server moves by the mean number of local steps times the mean of the clients' *normalised* changes.

    A client divides its change by ``a``, the number of times that its gradients count in it: the local steps for plain SGD.
    With equal ``a`` everywhere this is FedAvg or, with ``mu``, FedProx.

    Round:
        clients: ``F_k(w)``, with ``mu`` plus ``mu/2 |w - w_t|^2``
        server: w_t - (sum p_k a_k) sum p_k (w_t - w^k)/a_k
        more up: 4 bytes

    Args:
        mu: strength of FedProx's pull, ``mu/2 * ||w - w_t||^2`` in the local objective, at least 0; 0 leaves it out.

    Raises:
        ValueError: if ``mu`` is out of range, or the local optimizer is not SGD, or SGD with Nesterov's momentum or dampening,
            or its rate changes within a visit.
    """

    def __init__(self, net: Net, mu: float = 0.0, **common: Unpack[CommonArguments]) -> None:
        super().__init__(net, mu, **common)
        optimizer = self.optimizer([nn.Parameter(torch.zeros(1))])
        if type(optimizer) is not torch.optim.SGD:
            raise ValueError(f"model.optimizer is {type(optimizer).__name__}, but FedNova supports only SGD: use SGD")
        group = optimizer.param_groups[0]
        for name in ("nesterov", "dampening"):
            if group[name]:
                raise ValueError(
                    f"model.optimizer.{name} is {group[name]}, but FedNova takes only plain momentum: leave it out"
                )
        if self.visit_lr_scheduler is not None:
            raise ValueError(
                "model.visit_lr_scheduler is given, but FedNova counts local steps of one rate: leave it out, or use FedAvg"
            )
        self._accumulated_steps = AccumulatedSteps(self.optimizer)
        momentum, rate = group["momentum"], group["lr"]
        check_range("model.optimizer.momentum", momentum, at_least=0, below=1, hint="FedNova supports no other")
        if mu > 0 and momentum > 0:
            raise ValueError(
                f"model.mu is {mu} and model.optimizer.momentum {momentum}, but FedNova supports only one of them: set the "
                "other to 0"
            )
        if mu * rate > 1:
            raise ValueError(
                f"model.mu is {mu}, which with model.optimizer.lr {rate} pulls beyond the received weights: the product "
                "must be at most 1"
            )

    def check_data(self) -> None:
        super().check_data()
        self._accumulated_steps.check(self, *(("lr",) if self.mu else ()))

    def client_result(self, net: nn.Module, client: Client) -> Upload:
        upload = super().client_result(net, client)
        weights = upload.pop("weights").tensors
        a = self.accumulation(int(client.num_steps), float(client.learning_rate))
        changes = {name: (client.received_state[name] - weight.detach()) / a for name, weight in weights.items()}
        precision = torch.promote_types(torch.float32, client.received[0].dtype)
        accumulation = {"a": torch.tensor(a, dtype=precision, device=client.label_counts.device)}
        sent, weight = {"changes": changes, "accumulation": accumulation}, self.update_weight(client)
        return {**upload, **{name: Weighted(tensors, weight) for name, tensors in sent.items()}}

    def observed_change(self, upload: Upload, client: Client) -> State:
        changes, a = upload["changes"].tensors, upload["accumulation"].tensors["a"]
        return {name: change * a for name, change in changes.items()}

    def accumulation(self, steps: int, rate: float) -> float:
        """``||a||_1`` of so many local steps at this rate: the sum of how often each gradient counts."""
        kept = self.mu * rate  # of a gradient's part of the delta, each later step takes this share back
        return sum((1 - kept) ** step for step in range(steps)) if kept else self._accumulated_steps(steps)

    def aggregate(self, reduced: Reduction) -> Update:
        effective_steps = reduced.mean("accumulation")["a"]
        weights = dict(self.net.named_parameters())
        mean = reduced.mean("changes")
        gradient = {name: torch.empty_like(weights[name]).copy_(effective_steps * change) for name, change in mean.items()}
        return Update(gradient, reduced.mean("buffers"))


class AccumulatedSteps:
    """How often the gradients of so many local steps count in a client's change, all together, in units of the mean rate.

    Equation 8's ``||a||_1``, which with momentum rho is ``(K - rho (1 - rho^K) / (1 - rho)) / (1 - rho)`` for K steps. It is
    counted step by step, which includes dampening, Nesterov's form and schedules; the paper has none of them. K without
    momentum, with a momentum of 1 or more, and for optimizers other than SGD, with changes that are not sums of gradients.

    Args:
        optimizer: builds the local optimizer, new for each visit; its first group counts.
        factors: of a schedule within visits; None: all steps have one rate.

    Example::

        >>> heavy = AccumulatedSteps(lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.5))
        >>> heavy(3)  # 1 + 1/2 + 1/4, 1 + 1/2 and 1 times
        4.25
    """

    def __init__(self, optimizer: OptimizerBuilder, factors: RateFactors | None = None) -> None:
        made = optimizer([nn.Parameter(torch.zeros(1))])
        group = made.param_groups[0]
        self._group = group if type(made) is torch.optim.SGD and 0 < group["momentum"] < 1 else None
        self._factors = factors

    def check(self, method: FederatedModule, *names: str) -> None:
        """Refuse momentum that clients keep from visit to visit: the count is that of a velocity of 0 at a visit's start.

        Args:
            names: further options of the optimizer in which groups of weights must not differ.

        Raises:
            ValueError: if clients keep some, or groups of weights differ in an option that counts.
        """
        check_groups(method, *_ACCUMULATING, *names)
        if self._group is not None and method.needs.client_moments:
            raise ValueError(
                f"model.tasks.reset_adam_each_round is false, by which clients keep momentum between visits, but "
                f"{type(method).__name__} counts steps that begin without: set it to true, or model.optimizer.momentum to 0"
            )

    def __call__(self, steps: int) -> float:
        """The count of at least one step."""
        if self._group is None:
            return float(steps)
        rho, dampening, nesterov = (self._group[name] for name in _ACCUMULATING)
        total = velocity = 0.0
        for step in range(1, steps + 1):
            velocity = rho * velocity + (1 if step == 1 else 1 - dampening)
            total += (1 if self._factors is None else self._factors(step)) * (1 + rho * velocity if nesterov else velocity)
        return total if self._factors is None else total / (self._factors.mean(steps) or 1.0)
