"""Keep freed memory: glibc would return gradients to the system after every step and fault them in again."""

import ctypes
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_KEPT_BYTES = 1 << 30


def keep_freed_memory() -> None:
    """Raise glibc's thresholds for giving memory back, for this process; does nothing on other platforms.

    Each returned page costs a page fault when a later step uses it again. Results do not change.
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
