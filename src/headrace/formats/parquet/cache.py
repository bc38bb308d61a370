"""Pieces kept in memory, up to so many bytes, for many threads.

One thread makes a missing piece while others that want it wait, and those that want another go on.
In another process it starts empty.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.formats.parquet.columns import Rows

__all__ = ["CacheStatistics", "PieceCache"]


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """What a cache has done so far."""

    found: int  #: pieces that were there
    made: int  #: pieces that had to be made
    pieces: int  #: pieces kept now
    nbytes: int  #: bytes of memory they take
    peak: int  #: most bytes taken so far


class PieceCache:
    """`cache[number]` is a piece; the least recently used ones beyond the limit are let go.

    `make(number)` gives a piece and the bytes it costs; a mapped one costs none. One piece is kept
    even if it alone is over the limit.
    """

    def __init__(
        self, make: Callable[[int], tuple[Rows, int]], limit: int, most_pieces: int = 4096
    ) -> None:
        self._make = make
        self._limit = limit
        self._most = most_pieces  # mappings are few per process: 65,530 by default
        self._fresh()

    def _fresh(self) -> None:
        self._kept: OrderedDict[int, tuple[Rows, int]] = OrderedDict()
        self._making: dict[int, threading.Event] = {}
        self._lock = threading.Lock()
        self._nbytes = self._peak = self._found = self._made = 0

    def __repr__(self) -> str:
        return f"<PieceCache {len(self._kept)} pieces, {self._nbytes:,} of {self._limit:,} bytes>"

    def __getstate__(self) -> dict[str, Any]:
        return {"_make": self._make, "_limit": self._limit, "_most": self._most}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._fresh()

    def __getitem__(self, number: int) -> Rows:
        while True:
            with self._lock:
                kept = self._kept.get(number)
                if kept is not None:
                    self._kept.move_to_end(number)
                    self._found += 1
                    return kept[0]
                made = self._making.get(number)
                if made is None:
                    self._making[number] = threading.Event()
                    break
            made.wait()  # then look again: it may have failed, or be gone already
        try:
            rows, size = self._make(number)
            with self._lock:
                self._keep(number, rows, size)
            return rows
        finally:
            with self._lock:
                self._making.pop(number).set()

    def _keep(self, number: int, rows: Rows, size: int) -> None:
        self._made += 1
        self._kept[number] = rows, size
        self._nbytes += size
        while len(self._kept) > 1 and (self._nbytes > self._limit or len(self._kept) > self._most):
            _, (_, freed) = self._kept.popitem(last=False)
            self._nbytes -= freed
        self._peak = max(self._peak, self._nbytes)

    def statistics(self) -> CacheStatistics:
        """The figures now."""
        with self._lock:
            return CacheStatistics(
                self._found, self._made, len(self._kept), self._nbytes, self._peak
            )
