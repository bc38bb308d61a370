"""Memory that other processes can map too: one unnamed file, a region of it for each slot.

An unnamed file (`memfd`) rather than `/dev/shm`, which containers often keep at 64 MB, and which
keeps what a killed process leaves behind. Whoever has the descriptor maps a region by its place.
"""

from __future__ import annotations

import mmap
import os
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Region", "SharedMemory", "map_region", "sharing_is_possible"]


def sharing_is_possible() -> bool:
    """Whether the system has unnamed files."""
    return hasattr(os, "memfd_create") and hasattr(mmap, "MADV_REMOVE")


class SharedMemory:
    """Hands out regions of an unnamed file; a region that has ended is used again."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("headrace", os.MFD_CLOEXEC)
        self._size = 0
        self._ended: dict[int, list[int]] = {}  # places by size
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<SharedMemory {self._size:,} bytes of addresses>"

    def region(self, size: int) -> Region:
        """A region of its own, filled with zeros."""
        pages = -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        try:
            place = self._ended[pages].pop()
        except (KeyError, IndexError):
            with self._lock:
                place = self._size
                os.ftruncate(self.fd, place + pages)
                self._size = place + pages
        return Region(self, place, pages)

    def give_up(self, place: int, size: int) -> None:
        """A region has ended. Takes no lock: the garbage collector may call it anywhere."""
        self._ended.setdefault(size, []).append(place)

    def __del__(self, _close: Any = os.close) -> None:  # `os` may be gone by then
        if hasattr(self, "fd"):
            _close(self.fd)


class Region:
    """Mapped memory with a place that other processes can be told."""

    def __init__(self, file: SharedMemory, place: int, size: int) -> None:
        self.place = place
        self.size = size
        self._file = file
        self._map = mmap.mmap(file.fd, size, offset=place)
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"<Region {self.size:,} bytes at {self.place:,}>"

    def array(self) -> NDArray[np.uint8]:
        """The region's bytes."""
        return np.frombuffer(self._map, np.uint8)

    def end(self) -> None:
        """Give the memory back to the system at once, whoever else has it mapped.

        Not in a forked child, where the same pages are still the parent's batches.
        """
        if self._process == os.getpid():
            self._map.madvise(mmap.MADV_REMOVE)
            self._file.give_up(self.place, self.size)


def map_region(fd: int, place: int, size: int) -> NDArray[np.uint8]:
    """A region of another process's shared memory."""
    pages = -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
    return np.frombuffer(mmap.mmap(fd, pages, offset=place), np.uint8)
