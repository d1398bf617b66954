"""Inner product manipulation: hostile clients push against the honest mean.

C. Xie, O. Koyejo, I. Gupta: Fall of Empires: Breaking Byzantine-Tolerant SGD by Inner Product Manipulation. UAI 2019. arXiv
1903.03936. Section 4.
"""

import math

from torch import Tensor

from fl_lightning.checks import check_range
from fl_lightning.robustness.hostile import Hostile


class IPM(Hostile):
    """All hostile clients send ``-epsilon`` times the mean of the honest changes.

    Args:
        fraction: share of hostile clients, above 0 and below 1.
        epsilon: above 0; a small one hides among honest changes, a large one turns the mean around.

    Raises:
        ValueError: if a value is out of range.
    """

    corrupts_uploads = True

    def __init__(self, fraction: float = 0.2, epsilon: float = 0.5) -> None:
        super().__init__(fraction)
        check_range("model.hostile.epsilon", epsilon, above=0, below=math.inf, hint="a small one hides")
        self.epsilon = epsilon

    def changes(self, own: Tensor, honest: Tensor) -> Tensor:
        return (-self.epsilon * honest.mean(dim=0)).expand_as(own)
