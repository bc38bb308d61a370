"""The memory budget, and slots: the memory of one batch each, pooled and handed out on lease.

A batch's arrays are views of a slot's memory. The slot returns to its pool when the last of them is
gone, wherever it is: the arrays' common base is a lease, whose end puts a message into a queue.
That is done by a weak reference, and in C alone. With a `__del__`, a Ctrl-C that arrives while it
runs would be swallowed, and the garbage collector would run it while any lock is held.

Slots lie in memory that worker processes map too: one unnamed file (`memfd`) with a region for each
slot. Not `/dev/shm`, which containers often keep at 64 MB, and which keeps what a killed process
leaves behind. A process that has the descriptor maps a region by its place.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.engine.statistics import BudgetStatistics
from headrace.errors import BudgetError

_ALIGN = 64  # a cache line, so that neighbouring arrays share none

NOT_SHARED = -1  #: place of a slot that only this process has

Arrays = dict[str, NDArray[Any]]
#: Name, shape, type and first byte of each array.
Layout = list[tuple[str, tuple[int, ...], np.dtype[Any], int]]
#: Makes memory ready for a device (page-locks it) and returns what undoes that.
Lock = Callable[[NDArray[np.uint8]], Callable[[], None]]


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An array of a slot."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes, rounded up to the alignment."""
        size = math.prod(self.shape) * np.dtype(self.dtype).itemsize
        return -(-size // _ALIGN) * _ALIGN


def slot_bytes(specs: Mapping[str, ArraySpec]) -> int:
    """Bytes of a slot with these arrays."""
    return sum(spec.nbytes for spec in specs.values())


class Budget:
    """Counts bytes and refuses what would pass the limit.

    >>> budget = Budget(100)
    >>> budget.charge(60, "a slot")
    >>> budget
    <Budget 60 of 100 bytes held, peak 60>
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = self._peak = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Budget {self._held:,} of {self._limit:,} bytes held, peak {self._peak:,}>"

    @property
    def free(self) -> int:
        """Bytes that may still be charged."""
        return self._limit - self._held

    def charge(self, size: int, what: str) -> None:
        """Hold `size` more bytes, or raise."""
        with self._lock:
            if self._held + size > self._limit:
                raise BudgetError(
                    f"{what} needs {size:,} bytes where {self._limit - self._held:,} of a budget "
                    f"of {self._limit:,} are free",
                    remedy="Raise `memory`, or lower batch_size or image_size",
                )
            self._held += size
            self._peak = max(self._peak, self._held)

    def release(self, size: int) -> None:
        """Hold `size` bytes less."""
        with self._lock:
            self._held -= size

    def statistics(self) -> BudgetStatistics:
        """The figures now."""
        with self._lock:
            return BudgetStatistics(self._limit, self._held, self._peak)


# -- shared memory ---------------------------------------------------------------------------------


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

    def close(self, _close: Any = os.close) -> None:  # `os` may be gone by then
        """Let go of the file; regions that are still mapped keep their memory."""
        fd, self.fd = getattr(self, "fd", -1), -1
        if fd >= 0:
            _close(fd)

    __del__ = close


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
        """Give the memory back to the system at once, even if others have it mapped.

        Not in a forked child, where the same pages are still the parent's batches.
        """
        if self._process == os.getpid():
            self._map.madvise(mmap.MADV_REMOVE)
            self._file.give_up(self.place, self.size)


def map_region(fd: int, place: int, size: int) -> NDArray[np.uint8]:
    """A region of another process's shared memory."""
    pages = -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
    return np.frombuffer(mmap.mmap(fd, pages, offset=place), np.uint8)


# -- slots -----------------------------------------------------------------------------------------


class _Lease:
    """Exposes a slot's memory to numpy, and lives as long as the last array on it."""

    __slots__ = ("__array_interface__", "__weakref__", "_slot")

    def __init__(self, slot: Slot) -> None:
        self.__array_interface__ = slot.interface
        self._slot = slot


class Returned(weakref.ref[_Lease]):
    """Says that a lease has ended: the argument of a pool's `ended`."""

    __slots__ = ("pool", "slot")

    slot: Slot
    pool: SlotPool

    def take_back(self) -> None:
        """Let the slot be used again."""
        self.pool.take_back(self)


class Slot:
    """The memory of one batch; in shared memory, where there is some."""

    def __init__(
        self,
        specs: Mapping[str, ArraySpec],
        shared: SharedMemory | None = None,
        lock: Lock | None = None,
    ) -> None:
        self._layout = slot_layout(specs)
        self.nbytes = slot_bytes(specs)
        self._process = os.getpid()
        self._region: Region | None = shared.region(self.nbytes) if shared else None
        memory = self._region.array() if self._region else _own_pages(self.nbytes)
        self._arrays = views_of(self._layout, memory)
        self._unlock = lock(memory) if lock else None
        self.interface = dict(memory.__array_interface__)

    @property
    def place(self) -> int:
        """Where in the shared memory it is."""
        return self._region.place if self._region else NOT_SHARED

    def arrays(self) -> Arrays:
        """Views for the threads that fill the slot; they must not outlive the filling."""
        return self._arrays

    def leased(self, ended: Callable[[Returned], None]) -> tuple[Arrays, Returned]:
        """Views for the consumer; the reference is given to `ended` when the last one is gone."""
        lease = _Lease(self)
        return views_of(self._layout, np.asarray(lease)), Returned(lease, ended)

    def __del__(self) -> None:
        unlock: Callable[[], None] | None = getattr(self, "_unlock", None)
        region: Region | None = getattr(self, "_region", None)
        if unlock is not None and self._process == os.getpid():
            unlock()
        if region is not None:
            region.end()


def _own_pages(size: int) -> NDArray[np.uint8]:
    """Memory on whole pages of its own, so that it can be locked."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return np.frombuffer(mmap.mmap(-1, max(1, size), flags=flags), np.uint8)


def slot_layout(specs: Mapping[str, ArraySpec]) -> Layout:
    """Where each array begins."""
    layout, at = [], 0
    for name, spec in specs.items():
        layout.append((name, spec.shape, np.dtype(spec.dtype), at))
        at += spec.nbytes
    return layout


def views_of(layout: Layout, memory: NDArray[np.uint8]) -> Arrays:
    """A slot's memory as its arrays."""
    return {name: np.ndarray(shape, dtype, memory, at) for name, shape, dtype, at in layout}


def slot_views(specs: Mapping[str, ArraySpec], memory: NDArray[np.uint8]) -> Arrays:
    """The same, told what the arrays are."""
    return views_of(slot_layout(specs), memory)


class SlotPool:
    """Up to `limit` slots of one shape, each charged to the budget when it is made.

    `ended(returned)` is called when a lease has ended, from whatever thread dropped it, possibly
    inside the garbage collector; somebody must then call `returned.take_back()`. It should be a
    function in C, such as the `put` of a `queue.SimpleQueue`.
    """

    def __init__(
        self,
        specs: Mapping[str, ArraySpec],
        limit: int,
        budget: Budget,
        *,
        ended: Callable[[Returned], None],
        shared: SharedMemory | None = None,
        lock: Lock | None = None,
    ) -> None:
        self._specs = dict(specs)
        self._budget = budget
        self._shared = shared
        self._lock = lock
        self._ended = ended
        self._free: deque[Slot] = deque()
        self._leased: dict[int, Returned] = {}
        self.slot_bytes = slot_bytes(specs)
        self.limit = limit
        self.made = 0

    def __repr__(self) -> str:
        return f"<SlotPool {len(self._free)} free, {self.made} of {self.limit} made>"

    @property
    def out(self) -> int:
        """Slots that are being filled or are held by the consumer."""
        return self.made - len(self._free)

    @property
    def exhausted(self) -> bool:
        """Whether no slot can be had before one comes back."""
        if self.out >= self.limit:
            return True
        return 0 < self.made <= self.out and self._budget.free < self.slot_bytes

    def take(self) -> Slot | None:
        """A free slot, a new one if there may be more, or None."""
        if self.out >= self.limit:
            return None
        try:
            return self._free.pop()
        except IndexError:
            pass
        try:
            self._budget.charge(self.slot_bytes, "a slot for one batch")
        except BudgetError:
            if self.made:
                return None  # others have the rest of the budget: make do with fewer
            raise
        try:
            slot = Slot(self._specs, self._shared, self._lock)
        except BaseException:
            self._budget.release(self.slot_bytes)
            raise
        self.made += 1
        return slot

    def lease(self, slot: Slot) -> Arrays:
        """Hand a filled slot to the consumer."""
        arrays, returned = slot.leased(self._ended)
        returned.slot, returned.pool = slot, self
        self._leased[id(returned)] = returned
        return arrays

    def take_back(self, returned: Returned) -> None:
        """A lease has ended."""
        if self._leased.pop(id(returned), None) is not None:
            self._free.append(returned.slot)

    def put(self, slot: Slot) -> None:
        """Take back a slot that was not handed out."""
        self._free.append(slot)

    def abandon(self) -> None:
        """Nobody will take slots back any more: those on lease belong to their batches."""
        gone = len(self._leased)
        self._leased.clear()
        self.made -= gone
        self._budget.release(gone * self.slot_bytes)

    def shrink(self) -> None:
        """Give up free slots beyond the limit. Called by the thread that takes slots, too."""
        while self.made > self.limit:
            try:
                self._free.pop()
            except IndexError:
                return
            self.made -= 1
            self._budget.release(self.slot_bytes)
