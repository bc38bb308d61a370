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

from headrace.formats.parquet.records import Records

__all__ = ["CacheStatistics", "PieceCache"]


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """What a cache has done so far."""

    found: int  #: times that a piece was in memory; mapped ones are not counted
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
        self, make: Callable[[int], tuple[Records, int]], limit: int, most_pieces: int = 4096
    ) -> None:
        self._make = make
        self._limit = limit
        self._most = most_pieces  # mappings are few per process: 65,530 by default
        self._fresh()

    def _fresh(self) -> None:
        self._mapped: dict[int, Records] = {}  # those that cost nothing; read without the lock
        self._kept: OrderedDict[int, tuple[Records, int]] = OrderedDict()
        self._making: dict[int, threading.Event] = {}
        self._lock = threading.Lock()
        self._nbytes = self._peak = self._found = self._made = 0

    def __repr__(self) -> str:
        pieces = len(self._kept) + len(self._mapped)
        return f"<PieceCache {pieces} pieces, {self._nbytes:,} of {self._limit:,} bytes>"

    def __getstate__(self) -> dict[str, Any]:
        return {"_make": self._make, "_limit": self._limit, "_most": self._most}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._fresh()

    def __getitem__(self, number: int) -> Records:
        mapped = self._mapped.get(number)
        if mapped is not None:
            return mapped
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
            records, size = self._make(number)
            with self._lock:
                self._keep(number, records, size)
            return records
        finally:
            with self._lock:
                self._making.pop(number).set()

    def _keep(self, number: int, records: Records, size: int) -> None:
        self._made += 1
        if not size:
            if len(self._mapped) >= self._most:
                self._mapped = {}  # to map a piece again takes microseconds
            self._mapped[number] = records
            return
        self._kept[number] = records, size
        self._nbytes += size
        while len(self._kept) > 1 and self._nbytes > self._limit:
            _, (_, freed) = self._kept.popitem(last=False)
            self._nbytes -= freed
        self._peak = max(self._peak, self._nbytes)

    def keep_all(self) -> None:
        """Let nothing go any more."""
        self._limit = 1 << 62

    def statistics(self) -> CacheStatistics:
        """The figures now."""
        with self._lock:
            return CacheStatistics(
                self._found,
                self._made,
                len(self._kept) + len(self._mapped),
                self._nbytes,
                self._peak,
            )
