"""RFA: the geometric median by the smoothed Weiszfeld algorithm.

K. Pillutla, S. M. Kakade, Z. Harchaoui: Robust Aggregation for Federated Learning. IEEE Transactions on Signal Processing 70,
2022. arXiv 1912.13445. Algorithm 2. Departures: clients count equally. The paper leaves the first point open; the authors' code
starts at the mean, which one hostile update can move anywhere, and here it is the global model. A client that returns the model
it received is that point and has the weight 1 / nu, so the paper's three iterations would not leave it: the default is 100.
"""

import math

import torch
from torch import Tensor

from fl_lightning.checks import check_range, check_whole
from fl_lightning.robustness.aggregation import ByDistance, distances_from


class RFA(ByDistance):
    """The geometric median: ``iterations`` times, the mean with weights ``1 / max(nu, distance to the last mean)``.

    Args:
        iterations: R, at least 1; the paper uses 3. Each costs K x K products, K the number of updates.
        nu: smallest distance that counts, above 0 and finite; the paper uses 1e-6.

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, iterations: int = 100, nu: float = 1e-6) -> None:
        check_whole("model.aggregation.iterations", iterations, at_least=1, hint="such as 100")
        check_range("model.aggregation.nu", nu, above=0, below=math.inf, hint="1e-6 is the paper's")
        self.iterations, self.nu = iterations, nu

    def shares(self, products: Tensor) -> Tensor:
        shares = torch.zeros_like(products[0])
        for _ in range(self.iterations):
            weights = 1 / distances_from(shares, products).clamp_min(self.nu)
            shares = weights / weights.sum()
        return shares
