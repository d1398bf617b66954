"""The part of a defence in a round, and the epsilon that it spends."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import lru_cache
from importlib import import_module

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.checks import check_range
from fl_lightning.checks.extras import needing_extra
from fl_lightning.data.participation import Participation
from fl_lightning.data.present_shards import BatchSizes
from fl_lightning.models.federated_net import copied_net
from fl_lightning.protocol import Protection, Update

# Below this, Opacus's sums over fractional orders take minutes or never end, and sampling hides next to nothing: epsilon,
# above 5,000 by then, is taken as that of a sampling rate of 1, which it cannot exceed.
_SMALLEST_NOISE_WITH_SAMPLING = 0.01


Releases = dict[tuple[float, float], int]  # (sampling rate, sigma) -> number of noisy sums released with them


def epsilon(releases: Releases, delta: float) -> float:
    """Epsilon of the subsampled Gaussian mechanism at ``delta``, after noisy sums over Poisson samples.

    It is that of ``opacus.accountants.RDPAccountant``: I. Mironov, K. Talwar, L. Zhang: Rényi Differential Privacy of the
    Sampled Gaussian Mechanism. arXiv 1908.10530.

    Args:
        releases: by the probability that one sample, or client, is in a sum, in (0, 1], and sigma, above 0. Without any,
            nothing is spent.
        delta: in (0, 1).
    """
    from opacus.accountants import RDPAccountant  # takes seconds, which runs without privacy do not need
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
    """Noise that hides the samples that a run learns from.

    Args:
        noise_multiplier: sigma, standard deviation of the noise in units of ``clipping_norm``.
        clipping_norm: C, largest norm of the contribution of a single sample, or client.
        delta: probability that epsilon does not hold, in (0, 1); well below 1 / number of samples, or of clients.

    Raises:
        ValueError: if a value is out of range.
        ModuleNotFoundError: without the extra ``privacy``.
    """

    accounts: bool
    """Whether epsilon is accounted for."""

    def __init__(self, noise_multiplier: float, clipping_norm: float = 1.0, delta: float = 1e-5) -> None:
        with needing_extra("privacy", f"model.privacy {type(self).__name__}"):
            import_module("opacus")  # used later in a run: its absence should show now
        for name, value, symbol in (("noise_multiplier", noise_multiplier, "sigma"), ("clipping_norm", clipping_norm, "C")):
            hint = f"it is {symbol}; model.privacy null is none"
            check_range(f"model.privacy.{name}", value, above=0, below=math.inf, hint=hint)
        check_range("model.privacy.delta", delta, above=0, below=1, hint="1e-5 is usual")
        self.noise_multiplier, self.clipping_norm, self.delta = noise_multiplier, clipping_norm, delta

    def __repr__(self) -> str:
        return f"{type(self).__name__}(sigma={self.noise_multiplier:g}, C={self.clipping_norm:g})"

    @abstractmethod
    def check(self, method: FederatedAlgorithm, participation: Participation, precision: str) -> None:
        """Refuse by name a run that this defence cannot protect.

        Args:
            method: of the run, whose data lie where the net is.
            participation: rule that draws cohorts.
            precision: precision of the trainer, such as ``32-true``.

        Raises:
            ValueError: with the cure.
        """

    def not_covered(self, method: FederatedAlgorithm) -> tuple[str, ...]:
        """Values from a client's data that reach the server without noise."""
        return ()

    @abstractmethod
    def protection(self, seed: int) -> Protection:
        """The defence's part at the clients: the estimate of gradients, or the bound on uploads; ``seed`` is for its noise."""

    def cohort(self, participation: Participation, round: int) -> list[int]:
        """The clients that are drawn for a round, ascending; by default those that take part without a defence."""
        return participation.cohort(round)

    def release(
        self, update: Update | None, method: FederatedAlgorithm, participation: Participation, num_updates: int
    ) -> Update | None:
        """The server's update from the mean of the present round, with noise; by default the mean as it is.

        Args:
            update: None in a round without a finite update.
            num_updates: number of updates in the mean.
        """
        return update

    @abstractmethod
    def charges(
        self, method: FederatedAlgorithm, participation: Participation, batch_sizes: BatchSizes, clients: Iterable[int]
    ) -> dict[int, tuple[float, int]]:
        """Expenses of a round with these clients: by client the sampling rate and the number of released noisy sums.

        Client -1 stands for all. Empty if nothing is accounted for.

        Args:
            participation: for the sampling of clients.
            batch_sizes: for the sampling of a client's samples.
        """

    def epsilon(self, releases: Releases) -> float:
        """Epsilon of noisy sums at ``delta``, by :func:`epsilon`."""
        return epsilon(releases, self.delta)


def refuse_half_precision(method: FederatedAlgorithm, precision: str, defence: str) -> None:
    """Refuse trained weights in half precision: rounding after the clipping could lengthen what was clipped.

    Args:
        precision: precision of the trainer, such as ``32-true``.

    Raises:
        ValueError: if a trained weight has fewer than 32 bits, or will have.
    """
    if precision in ("bf16-true", "16-true"):
        raise ValueError(f"trainer.precision is {precision}, but {defence} takes norms in full precision: use 32-true")
    for name, weight in method.trained_weights(method.net).items():
        if weight.itemsize < 4:
            raise ValueError(
                f"model.net has {name} in {weight.dtype}, but {defence} takes norms in full precision: give net.float()"
            )


def refuse_batch_norm(method: FederatedAlgorithm, defence: str) -> None:
    """Refuse BatchNorm, which mixes the samples of a batch, and any layer with running statistics, which have no noise.

    A frozen layer, which stays in evaluation mode, does neither.

    Raises:
        ValueError: if the net has such a layer.
    """
    net = copied_net(method).train()
    for name, layer in net.named_modules():
        tracks = isinstance(layer, _NormBase) and layer.track_running_stats
        if tracks and not layer.training:
            continue
        if isinstance(layer, _BatchNorm):
            raise ValueError(
                f"model.net has the layer {name}, {type(layer).__name__}, which lets samples of a batch see each other, so "
                f"{defence} cannot bound what one contributes: use group norm (torch.nn.GroupNorm, model.net.norm group)"
            )
        if tracks:
            raise ValueError(
                f"model.net has the layer {name}, {type(layer).__name__}, whose running statistics {defence} cannot hide: "
                "set its track_running_stats to false, or use group norm"
            )
    before = {name: buffer.clone() for name, buffer in net.named_buffers() if buffer.is_floating_point()}
    with torch.no_grad():
        net(method.data.first_inputs(2))
    for name, buffer in net.named_buffers():
        if name in before and not torch.equal(buffer, before[name]):
            raise ValueError(
                f"model.net has the buffer {name}, which changes as the net trains and which {defence} cannot hide: use a net "
                "without running statistics"
            )
