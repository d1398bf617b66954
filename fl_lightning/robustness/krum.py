"""Krum and Multi-Krum: the updates that are closest to their neighbours.

P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer: Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent.
NeurIPS 2017. Section 4 (Krum) and Section 5 (Multi-Krum).
"""

import torch
from torch import Tensor

from fl_lightning.checks import check_whole
from fl_lightning.robustness.aggregation import ByDistance


class Krum(ByDistance):
    """The mean of the ``kept`` updates with the smallest scores.

    The score of an update is the sum of its squared distances to the ``K - hostile - 2`` closest others. Of equal scores the
    client with the lower index counts.

    Args:
        hostile: f, number of hostile clients in a round that it withstands, at least 0; K must be above ``2 f + 2``.
        kept: m, number of updates in the mean, at least 1; 1 is Krum, more is Multi-Krum.

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, hostile: int = 1, kept: int = 1) -> None:
        check_whole("model.aggregation.hostile", hostile, at_least=0)
        check_whole("model.aggregation.kept", kept, at_least=1, hint="1 is Krum")
        self.hostile, self.kept = hostile, kept

    @property
    def least(self) -> int:
        return max(2 * self.hostile + 3, self.hostile + self.kept)

    def shares(self, products: Tensor) -> Tensor:
        squares, count = products.diagonal(), len(products)
        distances = (squares[:, None] + squares - 2 * products).fill_diagonal_(torch.inf)
        scores = distances.sort(dim=1).values[:, : count - self.hostile - 2].sum(dim=1)
        chosen = scores.sort(stable=True).indices[: self.kept]
        return torch.zeros_like(scores).index_fill_(0, chosen, 1 / self.kept)
