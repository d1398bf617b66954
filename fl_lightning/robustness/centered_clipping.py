"""Centred clipping: no client moves the model further than a radius.

S. P. Karimireddy, L. He, M. Jaggi: Learning from History for Byzantine Robust Optimization. ICML 2021. arXiv 2012.10333.
Equation (CCLIP). Departure: the first centre is the global model, not the last round's result, because clients send the change
of several local steps and no momentum.
"""

import math

import torch
from torch import Tensor

from fl_lightning.checks import check_range, check_whole
from fl_lightning.robustness.aggregation import ByDistance, distances_from


class CenteredClipping(ByDistance):
    """``iterations`` times ``v <- v + mean_k (x_k - v) min(1, radius / |x_k - v|)``, from v = 0.

    Args:
        radius: tau, above 0; the norm of a usual update.
        iterations: L, at least 1; the paper uses 1.

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, radius: float = 1.0, iterations: int = 1) -> None:
        check_range("model.aggregation.radius", radius, above=0, below=math.inf, hint="it is the norm of a usual update")
        check_whole("model.aggregation.iterations", iterations, at_least=1, hint="1 is the paper's")
        self.radius, self.iterations = radius, iterations

    def shares(self, products: Tensor) -> Tensor:
        shares = torch.zeros_like(products[0])
        for _ in range(self.iterations):
            factors = (self.radius / distances_from(shares, products)).clamp_max(1.0)
            shares = shares + (factors - factors.sum() * shares) / len(shares)
        return shares
