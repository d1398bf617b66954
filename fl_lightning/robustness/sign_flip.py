"""Sign flip: hostile clients send the opposite of their change.

L. Li, W. Xu, T. Chen, G. B. Giannakis, Q. Ling: RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning
from Heterogeneous Datasets. AAAI 2019. arXiv 1811.03761. Section 5.
"""

import math

from torch import Tensor

from fl_lightning.checks import check_range
from fl_lightning.robustness.hostile import Hostile


class SignFlip(Hostile):
    """A hostile client sends ``-scale`` times its change.

    Args:
        fraction: share of hostile clients, above 0 and below 1.
        scale: above 0; 1 is the same length.

    Raises:
        ValueError: if a value is out of range.
    """

    corrupts_uploads = True

    def __init__(self, fraction: float = 0.2, scale: float = 1.0) -> None:
        super().__init__(fraction)
        check_range("model.hostile.scale", scale, above=0, below=math.inf, hint="1 is the same length")
        self.scale = scale

    def changes(self, own: Tensor, honest: Tensor) -> Tensor:
        return -self.scale * own
