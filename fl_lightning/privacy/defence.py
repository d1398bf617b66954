"""What a defence may change about a round, and the epsilon that it spends."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import lru_cache
from importlib import import_module

import numpy as np
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.checks import check_range
from fl_lightning.checks.extras import needing_extra
from fl_lightning.data.participation import Participation
from fl_lightning.data.present_shards import BatchSizes
from fl_lightning.protocol import Update
from fl_lightning.protocol.protection import Protection

# Below, Opacus's sums over fractional orders take minutes, or never end, and that few samples are in a sum hides next to
# nothing: epsilon, above 5,000 by then, is that of a sampling rate of 1, which it cannot exceed.
_SMALLEST_NOISE_WITH_SAMPLING = 0.01


Releases = dict[tuple[float, float], int]  # (sampling rate, sigma) -> how many noisy sums were released so


def epsilon(releases: Releases, delta: float) -> float:
    """Epsilon of the subsampled Gaussian mechanism at ``delta``, after noisy sums over Poisson samples.

    It is that of ``opacus.accountants.RDPAccountant``: I. Mironov, K. Talwar, L. Zhang: Rényi Differential Privacy of the
    Sampled Gaussian Mechanism. arXiv 1908.10530.

    Args:
        releases: with the probability with which one sample, or client, is in a sum, in (0, 1], and sigma, above 0. None spend
            nothing.
        delta: in (0, 1).
    """
    from opacus.accountants import RDPAccountant  # takes seconds, which runs without privacy are spared
    from opacus.accountants.analysis.rdp import get_privacy_spent

    divergences = [count * _divergences_of_release(*how) for how, count in releases.items() if count > 0]
    if not divergences:
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of orders at the end of their range, which very small or large noise has
        total = np.asarray(sum(divergences)).tolist()
        spent, _ = get_privacy_spent(orders=RDPAccountant.DEFAULT_ALPHAS, rdp=total, delta=delta)
    return float(spent)


@lru_cache(maxsize=4096)
def _divergences_of_release(sampling_rate: float, noise_multiplier: float) -> np.ndarray:
    """Rényi divergences of one release, at the accountant's orders: they add up over releases."""
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis.rdp import compute_rdp

    if noise_multiplier < _SMALLEST_NOISE_WITH_SAMPLING:
        sampling_rate = 1.0
    orders = RDPAccountant.DEFAULT_ALPHAS
    return np.asarray(compute_rdp(q=sampling_rate, noise_multiplier=noise_multiplier, steps=1, orders=orders))


class Privacy(ABC):
    """Noise that hides what a run learned from.

    Args:
        noise_multiplier: sigma, standard deviation of the noise in units of ``clipping_norm``.
        clipping_norm: C, largest norm of what a single sample, or client, contributes.
        delta: probability with which epsilon may fail, in (0, 1); well below 1 / number of samples, or of clients.

    Raises:
        ValueError: if a value is out of range.
        ModuleNotFoundError: without the extra ``privacy``.
    """

    def __init__(self, noise_multiplier: float, clipping_norm: float = 1.0, delta: float = 1e-5) -> None:
        with needing_extra("privacy", f"model.privacy {type(self).__name__}"):
            import_module("opacus")  # used in the midst of a run, where it would be missed late
        for name, value, symbol in (("noise_multiplier", noise_multiplier, "sigma"), ("clipping_norm", clipping_norm, "C")):
            hint = f"it is {symbol}; model.privacy null is none"
            check_range(f"model.privacy.{name}", value, above=0, below=math.inf, hint=hint)
        check_range("model.privacy.delta", delta, above=0, below=1, hint="1e-5 is usual")
        self.noise_multiplier, self.clipping_norm, self.delta = noise_multiplier, clipping_norm, delta

    @property
    @abstractmethod
    def accounts(self) -> bool:
        """Whether epsilon is kept."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(sigma={self.noise_multiplier:g}, C={self.clipping_norm:g})"

    @abstractmethod
    def check(self, method: FederatedAlgorithm, participation: Participation, precision: str) -> None:
        """Refuse by name what this defence cannot cover.

        Args:
            method: of the run, whose data lie where the net is.
            participation: who takes part.
            precision: of the trainer, such as ``32-true``.

        Raises:
            ValueError: with the cure.
        """

    def not_covered(self, method: FederatedAlgorithm) -> tuple[str, ...]:
        """What of a client's data reaches the server without noise."""
        return ()

    @abstractmethod
    def protection(self, seed: int) -> Protection:
        """This defence's part at the clients: how gradients are estimated, or uploads bounded; ``seed`` is of its noise."""

    def cohort(self, participation: Participation, round: int) -> list[int]:
        """The clients that are drawn for a round, ascending; by default those that take part without a defence."""
        return participation.cohort(round)

    def release(
        self, update: Update | None, method: FederatedAlgorithm, participation: Participation, num_updates: int
    ) -> Update | None:
        """What the server does with the mean of the present round, with noise; by default as it is.

        Args:
            update: None in a round without a finite update.
            num_updates: in the mean.
        """
        return update

    @abstractmethod
    def charges(
        self, method: FederatedAlgorithm, participation: Participation, batch_sizes: BatchSizes, clients: Iterable[int]
    ) -> dict[int, tuple[float, int]]:
        """What a round with these clients spends: by client the sampling rate and how many noisy sums were released.

        Everybody is client -1. Empty where nothing is accounted for.

        Args:
            participation: who takes part, the sampling of clients.
            batch_sizes: the sampling of a client's samples.
        """

    def epsilon(self, releases: Releases) -> float:
        """What noisy sums have spent at ``delta``, by :func:`epsilon`."""
        return epsilon(releases, self.delta)


def refuse_batch_norm(net: nn.Module, defence: str) -> None:
    """BatchNorm mixes the samples of a batch; any norm with running statistics gives them away without noise.

    Raises:
        ValueError: if the net has such a layer.
    """
    for name, layer in net.named_modules():
        if isinstance(layer, _BatchNorm):
            raise ValueError(
                f"model.net has the layer {name}, {type(layer).__name__}, which lets samples of a batch see each other, so "
                f"{defence} cannot bound what one contributes: use group norm (torch.nn.GroupNorm, model.net.norm group)"
            )
        if isinstance(layer, _NormBase) and layer.track_running_stats:
            raise ValueError(
                f"model.net has the layer {name}, {type(layer).__name__}, whose running statistics {defence} cannot hide: "
                "set its track_running_stats to false, or use group norm"
            )
