"""RFA: the geometric median by the smoothed Weiszfeld algorithm.

K. Pillutla, S. M. Kakade, Z. Harchaoui: Robust Aggregation for Federated Learning. IEEE Transactions on Signal Processing 70,
2022. arXiv 1912.13445. Algorithm 2. Departures: clients count equally. The paper leaves the first point open; here it is the
global model.
"""

import math

import torch
from torch import Tensor

from fl_lightning.checks import check_range, check_whole
from fl_lightning.robustness.aggregation import ByDistance, distances_from


class RFA(ByDistance):
    """The geometric median: ``iterations`` times, the mean with weights ``1 / max(nu, distance to the last mean)``.

    Args:
        iterations: R, at least 1; the paper uses 3.
        nu: smallest distance that counts, above 0 and finite; the paper uses 1e-6.

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, iterations: int = 3, nu: float = 1e-6) -> None:
        check_whole("model.aggregation.iterations", iterations, at_least=1, hint="3 is the paper's")
        check_range("model.aggregation.nu", nu, above=0, below=math.inf, hint="1e-6 is the paper's")
        self.iterations, self.nu = iterations, nu

    def shares(self, products: Tensor) -> Tensor:
        shares = torch.zeros_like(products[0])
        for _ in range(self.iterations):
            weights = 1 / distances_from(shares, products).clamp_min(self.nu)
            shares = weights / weights.sum()
        return shares
