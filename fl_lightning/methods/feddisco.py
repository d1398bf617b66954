"""FedDisco: clients whose classes are far from even count less.

R. Ye, M. Xu, J. Wang, C. Xu, S. Chen, Y. Wang: FedDisco: Federated Learning with Discrepancy-Aware Collaboration. ICML 2023.
arXiv 2305.19229. Weights as in the authors' code: n_k and d_k are shares of the cohort, d_k from the Kullback-Leibler
divergence. Departures: the distribution aimed at is the even one; the code can also take that of a test set. Shares are of the
cohort as drawn, even if the update of one of its clients is not finite and is left out.
"""

import math
from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from fl_lightning.checks import check_range
from fl_lightning.module import CommonArguments, FederatedModule, Net
from fl_lightning.protocol import Client, DataNeeds, Needs


class FedDisco(FederatedModule):
    """The mean's weights are ``max(0, n_k - a d_k + b)``, n_k a client's share of the cohort's weights.

    ``d_k`` is ``KL(labels of k || even)`` over its sum in the cohort. A round in which all weights are 0 is lost.

    Round:
        clients: F_k(w)
        server: mean weighted by max(0, n_k - a d_k + b)

    Args:
        a: influence of the discrepancy, at least 0.
        b: added to all weights, at least 0; ``a`` 0 and ``b`` 0 is FedAvg.

    Raises:
        ValueError: if one of them is negative or not finite.
    """

    needs = Needs(data=DataNeeds(counts_of_cohort=True))
    unprotected = ("the discrepancy of the label counts",)

    def __init__(self, net: Net, a: float = 0.5, b: float = 0.1, **common: Unpack[CommonArguments]) -> None:
        super().__init__(net, **common)
        check_range("model.a", a, at_least=0, below=math.inf, hint="0 leaves the discrepancy out")
        check_range("model.b", b, at_least=0, below=math.inf, hint="the authors' code uses 0.1")
        self.a, self.b = a, b
        # The last round and its cohort, and the weights of its clients: counts differ from task to task.
        self._weights: tuple[tuple[int, tuple[int, ...]], list[float]] = ((0, ()), [])

    def check_data(self) -> None:
        super().check_data()
        self._weights = ((0, ()), [])  # not those of an earlier fit, perhaps of other data

    def update_weight(self, client: Client) -> float:
        cohort = tuple(sorted({visit.client for visit in self.present_cohort if visit.sends} | {client.index}))
        if (client.round, cohort) != self._weights[0]:
            uniform = self.server_weighting == "uniform"
            sizes = [1.0 if uniform else float(self.data.num_train(k)) for k in cohort]
            counts = torch.stack([self.data.train_label_counts[k] for k in cohort])
            self._weights = (client.round, cohort), disco_weights(sizes, counts, self.a, self.b)
        return self._weights[1][cohort.index(client.index)]


def disco_weights(sizes: Sequence[float], label_counts: Tensor, a: float, b: float) -> list[float]:
    """``max(0, n_k - a d_k + b)`` for K clients: the weights of the mean up to their sum.

    ``n_k`` is a client's share of the sizes, ``d_k`` the share of ``sum_c q_c log(C q_c)`` with q the shares of its classes.
    ``d_k`` is 0 for a client without any label, as with ``MultiLabel``, and for each where all clients' classes are even.

    Args:
        sizes: (K,), above 0.
        label_counts: (K, C), a row of each client.
        a, b: of :class:`FedDisco`.
    """
    counts = label_counts.double().cpu()
    shares = counts / counts.sum(dim=1, keepdim=True).clamp_min(1)  # a row of zeros has no shares
    gaps = torch.special.xlogy(shares, shares * counts.shape[1]).sum(dim=1).clamp_min(0)  # rounding is not a gap
    total = gaps.sum()
    n, d = torch.tensor(sizes, dtype=torch.float64), gaps / total if total > 0 else gaps
    return (n / n.sum() - a * d + b).clamp_min(0).tolist()
