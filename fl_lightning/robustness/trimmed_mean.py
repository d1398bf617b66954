"""Coordinate-wise trimmed mean.

D. Yin, Y. Chen, K. Ramchandran, P. Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. ICML
2018. arXiv 1803.01498. Definition 2, with a number of clients in place of the fraction beta.
"""

from torch import Tensor

from fl_lightning.checks import check_whole
from fl_lightning.robustness.aggregation import ByCoordinate


class TrimmedMean(ByCoordinate):
    """Each coordinate is the mean over clients without the ``hostile`` largest and the ``hostile`` smallest values.

    Args:
        hostile: number of hostile clients in a round that it withstands, at least 0; 0 is the mean.

    Raises:
        ValueError: if ``hostile`` is negative.
    """

    def __init__(self, hostile: int = 1) -> None:
        check_whole("model.aggregation.hostile", hostile, at_least=0, hint="0 is the mean")
        self.hostile = hostile

    @property
    def least(self) -> int:
        return 2 * self.hostile + 1

    def of_coordinates(self, values: Tensor) -> Tensor:
        return values.sort(dim=0).values[self.hostile : len(values) - self.hostile].mean(dim=0)
