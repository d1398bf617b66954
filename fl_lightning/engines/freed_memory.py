"""Keep freed memory: on glibc, gradients would go back to the system after every step and be faulted in again."""

import ctypes
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_KEPT_BYTES = 1 << 30


def keep_freed_memory() -> None:
    """Raise glibc's thresholds for giving memory back, for this process; does nothing on other platforms.

    Each page that is given back costs a page fault when a later step takes it again. Results stay the same.
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
