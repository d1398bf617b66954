"""ALIE: hostile clients that stay within the spread of the honest ones.

G. Baruch, M. Baruch, Y. Goldberg: A Little Is Enough: Circumventing Defenses For Distributed Learning. NeurIPS 2019. arXiv
1902.06156. Algorithm 3. Departure: mean and deviation are those of the honest clients, which the paper estimates from the
hostile ones.
"""

import math

from torch import Tensor

from fl_lightning.checks import check_range
from fl_lightning.robustness.hostile import Hostile


class ALIE(Hostile):
    """All hostile clients send ``mean - z * deviation`` of the honest changes, coordinate by coordinate.

    Args:
        fraction: share of hostile clients, above 0 and below 1.
        z: above 0. With m hostile of K clients, ``s = floor(K / 2 + 1) - m`` honest ones make them a majority; s honest ones
            are expected to be further out than ``z`` deviations on their side while ``Phi(z) < (K - m - s) / (K - m)``.

    Raises:
        ValueError: if a value is out of range.
    """

    corrupts_uploads = True

    def __init__(self, fraction: float = 0.2, z: float = 1.5) -> None:
        super().__init__(fraction)
        check_range("model.hostile.z", z, above=0, below=math.inf, hint="1.5 is usual")
        self.z = z

    def changes(self, own: Tensor, honest: Tensor) -> Tensor:
        return (honest.mean(dim=0) - self.z * honest.std(dim=0, correction=0)).expand_as(own)
