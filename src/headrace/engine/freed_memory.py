"""Keeping memory that was freed, in a process that asks for as much again a moment later.

glibc gives large arrays back to the system as soon as they are freed, and the system hands out
zeroed pages for the next ones. In a process that makes the same temporary arrays for every task
that is a third of its CPU time.
"""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h numbers them
_KEPT = 32 << 20  # bytes at most that stay with the process
_LARGE = 8 << 20  # arrays above this are given back as before


def keep_freed_memory() -> bool:
    """Keep some MB of freed memory from now on; whether this system's malloc can do that."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another libc
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGE)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))
