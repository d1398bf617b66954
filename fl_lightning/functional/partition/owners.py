"""The natural partition of the data."""

import numpy as np
from numpy.typing import ArrayLike

from fl_lightning.checks import check_range
from fl_lightning.functional.partition.parts import Parts, listed


@listed
def owner_partition(owners: ArrayLike, num_clients: int, seed: int, min_samples: int = 1) -> Parts:
    """Natural clients: the writer of a digit, the user of a phone.

    Those with fewer than ``min_samples`` samples are left out; of the others ``num_clients`` are taken at random. Clients come
    in ascending order of their number, samples in the order of the data.

    Args:
        owners: (n,) the natural client of every sample, any integers.
        num_clients: 1 to the number of natural clients that have ``min_samples``.
        seed: any non-negative integer; has no effect if all of them are taken.
        min_samples: at least 1.

    Raises:
        ValueError: if there are fewer such clients than ``num_clients``.

    Example::

        >>> parts = owner_partition([7, 3, 7, 9, 3], num_clients=2, seed=0, min_samples=2)
        >>> [part.tolist() for part in parts]  # of 3 and 7; 9 has one sample
        [[1, 4], [0, 2]]
    """
    owners = np.asarray(owners)
    check_min_samples(min_samples)
    order = np.argsort(owners, kind="stable")
    borders = np.flatnonzero(np.diff(owners[order])) + 1
    sizes = np.diff(borders, prepend=0, append=len(owners))
    kept = np.flatnonzero(sizes >= min_samples)
    hint = f"so many natural clients have min_samples, {min_samples}, or more samples"
    check_range("num_clients", num_clients, at_least=1, at_most=len(kept), hint=hint)
    if num_clients < len(kept):
        kept = np.sort(np.random.default_rng(seed).choice(kept, num_clients, replace=False))
    starts = np.cumsum(sizes) - sizes
    return Parts.of_ranges(order, starts[kept], sizes[kept])


def check_min_samples(min_samples: int) -> None:
    """Refuse a ``min_samples`` below 1.

    Raises:
        ValueError: naming it and its value.

    Example::

        >>> check_min_samples(1)
        >>> check_min_samples(0)
        Traceback (most recent call last):
        fl_lightning.checks.ArgumentError: min_samples is 0, must be at least 1: smaller clients are left out
    """
    check_range("min_samples", min_samples, at_least=1, hint="smaller clients are left out")
