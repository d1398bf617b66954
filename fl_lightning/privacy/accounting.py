"""Epsilon of the subsampled Gaussian mechanism, by Opacus's accountant.

I. Mironov, K. Talwar, L. Zhang: Rényi Differential Privacy of the Sampled Gaussian Mechanism. arXiv 1908.10530.
"""

import warnings
from functools import lru_cache

import numpy as np

# Below, Opacus's sums over fractional orders take minutes, or never end, and that few samples are in a sum hides next to
# nothing: epsilon, above 5,000 by then, is that of a sampling rate of 1, which it cannot exceed.
_SMALLEST_NOISE_WITH_SAMPLING = 0.01


Releases = dict[tuple[float, float], int]  # (sampling rate, sigma) -> how many noisy sums were released so


def epsilon(releases: Releases, delta: float) -> float:
    """Epsilon at ``delta`` after noisy sums over Poisson samples; what ``opacus.accountants.RDPAccountant`` says.

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
