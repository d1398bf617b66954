"""Coordinate-wise median.

D. Yin, Y. Chen, K. Ramchandran, P. Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. ICML
2018. arXiv 1803.01498. Definition 1.
"""

from torch import Tensor

from fl_lightning.robustness.aggregation import ByCoordinate


class CoordinateMedian(ByCoordinate):
    """Each coordinate is the median over clients; with an even number of clients, the mean of the two in the middle."""

    def of_coordinates(self, values: Tensor) -> Tensor:
        ordered, count = values.sort(dim=0).values, len(values)
        return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
