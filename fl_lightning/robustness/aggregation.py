"""Aggregation: a rule that combines clients' updates, in place of their weighted mean."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from fl_lightning.checks import class_and_settings
from fl_lightning.functional.aggregation import State


class Aggregation(ABC):
    """A rule that withstands some hostile clients. Each client counts once: it could lie about its number of samples."""

    @property
    def least(self) -> int:
        """Smallest number of updates that the rule can combine; a round with fewer is lost."""
        return 1

    @abstractmethod
    def combine(self, changes: Mapping[str, Tensor], measured: Collection[str]) -> State:
        """The combined change of each weight and buffer, (n,) by name.

        Args:
            changes: changes of K clients from the global values, (K, n) by name.
            measured: the names that decide, those of weights; buffers follow.
        """

    def __repr__(self) -> str:
        return class_and_settings(self)


class ByCoordinate(Aggregation):
    """A rule that treats each coordinate by itself."""

    @abstractmethod
    def of_coordinates(self, values: Tensor) -> Tensor:
        """The combination, (n,), of K clients' values, (K, n)."""

    def combine(self, changes: Mapping[str, Tensor], measured: Collection[str]) -> State:
        return {name: self.of_coordinates(changes[name]) for name in changes}


class ByDistance(Aggregation):
    """A rule that combines the updates linearly, with factors that depend only on their distances.

    These follow from the inner products of all pairs, which are summed weight by weight: no matrix of all updates is needed.
    """

    @abstractmethod
    def shares(self, products: Tensor) -> Tensor:
        """The factor of each client's change, (K,), from the inner products of all pairs, (K, K)."""

    def combine(self, changes: Mapping[str, Tensor], measured: Collection[str]) -> State:
        products = torch.stack([values @ values.T for values in map(changes.__getitem__, measured)]).sum(dim=0)
        shares = self.shares(products)
        return {name: shares @ changes[name] for name in changes}


def distances_from(shares: Tensor, products: Tensor) -> Tensor:
    """(K,), distances of K vectors from their combination with these factors, (K,).

    ``|x_k - v|^2 = <x_k, x_k> - 2 <x_k, v> + <v, v>`` with ``v = sum_j shares_j x_j``.

    Args:
        products: inner products of all pairs, (K, K).
    """
    with_center = products @ shares
    return (products.diagonal() - 2 * with_center + shares @ with_center).clamp_min(0).sqrt()
