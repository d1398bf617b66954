"""Whether this machine's memory holds some data, asked before any is taken."""

import math
import os


def machine_memory() -> float:
    """Bytes of this machine's memory; infinite where the system does not say."""
    return math.inf if not hasattr(os, "sysconf") else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(num_bytes: int, what: str, cure: str) -> None:
    """Raise a ValueError, naming what takes so many bytes and the cure, if this machine's memory does not hold them."""
    if num_bytes > machine_memory():
        raise ValueError(
            f"{what} take {num_bytes / 1e9:,.1f} GB, this machine's memory has {machine_memory() / 1e9:,.1f}: {cure}"
        )
