"""Random access to rows: from memory, from the store, or decoded from the Parquet file."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from headrace.engine.machine import allowed_cpus, available_memory
from headrace.errors import CatalogError, UsageError
from headrace.formats.parquet.columns import Prepare, Records, Rows, columns_of, decode
from headrace.formats.parquet.files import ParquetStamp, RowGroups
from headrace.formats.parquet.store import RowGroupStore, StoreUnusable
from headrace.jobs import ProcessPool, WorkerLost, from_portable, to_portable
from headrace.sampling.bijection import Ints

_log = logging.getLogger("headrace")

#: Below this many rows the work is done before worker processes have started (0.3 s).
_IN_PROCESS_ROWS = 1_000_000
#: What a process takes at its peak, in all and for each row of a row group. Divided like this
#: because it was 168 MB with groups of 425,000 rows of five columns (Python 3.12, Arrow 25).
_PROCESS_BYTES, _ROW_BYTES = 64 << 20, 256


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """What a cache has done so far."""

    found: int  #: times that a row group was in memory; mapped ones are not counted
    made: int  #: row groups that had to be made
    groups: int  #: row groups kept now
    nbytes: int  #: bytes of memory they take
    peak: int  #: most bytes taken so far


class RowGroupCache:
    """`cache[number]` is a row group; the least recently used ones beyond the limit are dropped.

    `make(number)` gives a row group and the bytes it costs; a mapped one costs none. One is kept
    even if it alone exceeds the limit. Threads may share it: one makes a missing row group while
    others that need it wait, and those that need another continue. In another process it starts
    empty.
    """

    def __init__(
        self, make: Callable[[int], tuple[Records, int]], limit: int, most_mapped: int = 4096
    ) -> None:
        self._make = make
        self._limit = limit
        self._most_mapped = most_mapped  # the kernel allows 65,530 mappings per process by default
        self._fresh()

    def _fresh(self) -> None:
        self._mapped: dict[int, Records] = {}  # these cost nothing; read without the lock
        self._kept: OrderedDict[int, tuple[Records, int]] = OrderedDict()
        self._making: dict[int, threading.Event] = {}
        self._lock = threading.Lock()
        self._nbytes = self._peak = self._found = self._made = 0

    def __repr__(self) -> str:
        groups = len(self._kept) + len(self._mapped)
        return f"<RowGroupCache {groups} groups, {self._nbytes:,} of {self._limit:,} bytes>"

    def __getstate__(self) -> dict[str, Any]:
        return {"_make": self._make, "_limit": self._limit, "_most_mapped": self._most_mapped}

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
            made.wait()  # then look again: it may have failed, or be dropped already
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
            if len(self._mapped) >= self._most_mapped:
                self._mapped = {}  # mapping one again takes microseconds
            self._mapped[number] = records
            return
        self._kept[number] = records, size
        self._nbytes += size
        while len(self._kept) > 1 and self._nbytes > self._limit:
            _, (_, freed) = self._kept.popitem(last=False)
            self._nbytes -= freed
        self._peak = max(self._peak, self._nbytes)

    def keep_all(self) -> None:
        """Drop nothing any more."""
        self._limit = 1 << 62

    def statistics(self) -> CacheStatistics:
        """What was found and made so far."""
        with self._lock:
            return CacheStatistics(
                self._found,
                self._made,
                len(self._kept) + len(self._mapped),
                self._nbytes,
                self._peak,
            )


class RowAccess:
    """`access.rows(first, count)`: prepared columns of rows, counted through all files.

    Threads may share it, and it may be sent to other processes, where it starts with empty memory.
    """

    def __init__(
        self,
        files: Sequence[ParquetStamp],
        groups: RowGroups,
        columns: Sequence[str],
        prepare: Prepare,
        *,
        dictionaries: Sequence[str] = (),
        cache_bytes: int,
        store: RowGroupStore | None = None,
    ) -> None:
        self.files, self.groups, self.columns = files, groups, tuple(columns)
        self.prepare = prepare
        self.store = store
        self._dictionaries = tuple(dictionaries)
        self._store_failed = False
        self._cache = RowGroupCache(self._make, cache_bytes)

    def __repr__(self) -> str:
        return f"<RowAccess {self.groups!r}, {'stored' if self.store else 'in memory'}>"

    def rows(self, first: int, count: int) -> Rows:
        """The columns of rows, copied."""
        slices = self.groups.slices(first, count)
        if len(slices) == 1:
            number, begin, end = slices[0]
            return self._cache[number].rows(begin, end)
        found = [self._cache[number].rows(begin, end) for number, begin, end in slices]
        names = found[0].keys()
        for rows, (number, _, _) in zip(found, slices, strict=True):
            if rows.keys() != names:
                raise UsageError(
                    f"prepare gave the columns {', '.join(rows)} here and {', '.join(names)} "
                    "for the rows before",
                    file=self.files[self.groups[number].file].path,
                    remedy="It must give the same columns for every row group",
                )
        return {name: np.concatenate([rows[name] for rows in found]) for name in names}

    def windows(self, firsts: Ints, count: int) -> Rows:
        """Many windows of `count` rows as [windows, rows, ...]."""
        numbers = np.searchsorted(self.groups.ends, firsts, side="right")
        begins = firsts - self.groups.starts[numbers]
        cache = self._cache
        found = [cache[number] for number in numbers.tolist()]
        dtype = found[0].dtype
        if len({records.dtype for records in found}) > 1:
            return self._stacked(firsts, count)
        # Joining slices of memory takes a third of the time of copying them one by one.
        each = [
            records.raw[begin : begin + count]
            for records, begin in zip(found, begins.tolist(), strict=True)
        ]
        for place in np.flatnonzero(firsts + count > self.groups.ends[numbers]).tolist():
            each[place] = Records.of(self.rows(int(firsts[place]), count)).raw
        data = np.frombuffer(bytearray().join(each), np.uint8)
        return columns_of(data.reshape(len(firsts), count, dtype.itemsize), dtype)

    def _stacked(self, firsts: Ints, count: int) -> Rows:
        """As `windows`, where texts differ in width between row groups."""
        each = [self.rows(first, count) for first in firsts.tolist()]
        return {name: np.stack([rows[name] for rows in each]) for name in each[0]}

    def load(self) -> None:
        """Bring everything into memory: the store's pages, or all row groups despite the limit."""
        if self.store is None:
            self._cache.keep_all()
        for number in range(len(self.groups)):
            self._cache[number].data.reshape(-1)[::4096].max(initial=0)  # touches every page

    def build(self, number: int) -> int:
        """Store a row group unless it is stored; its bytes. Raises `StoreUnusable`."""
        assert self.store is not None
        with self.store.locked(number):
            records = self.store.find(number)
            if records is None:
                records = self._decode(number)
                self.store.put(number, records)
        return records.nbytes

    def without_store(self, why: str) -> None:
        """Stop storing, and warn once that row groups are kept in memory from now on."""
        if not self._store_failed:
            self._store_failed = True
            _log.warning(
                "prepared rows cannot be stored (%s): row groups are decoded again whenever they "
                "have left memory, which makes a global shuffle slow; free some space, set "
                "HEADRACE_CACHE to another disk, or use shuffle='local'",
                why,
            )

    def statistics(self) -> CacheStatistics:
        """What was found in memory and what was not, in this process."""
        return self._cache.statistics()

    def _make(self, number: int) -> tuple[Records, int]:
        if self.store is None or self._store_failed:
            records = self._decode(number)
            return records, records.nbytes
        found = self.store.find(number)
        if found is not None:
            return found, 0
        with self.store.locked(number):
            found = self.store.find(number)  # another process may have been faster
            if found is not None:
                return found, 0
            records = self._decode(number)
            try:
                self.store.put(number, records)
            except StoreUnusable as error:
                self.without_store(str(error))
                return records, records.nbytes
        found = self.store.find(number)
        return (records, records.nbytes) if found is None else (found, 0)

    def _decode(self, number: int) -> Records:
        group = self.groups[number]
        file = self.files[group.file]
        return decode(file, group, self.columns, self._dictionaries, self.prepare)


def fill_store(
    access: RowAccess, done: Callable[[int, int], None], *, workers: int | None = None
) -> bool:
    """Store all row groups that are missing, on all CPUs; whether all are stored then.

    `done(rows, bytes)` is called for each. Where nothing more can be stored, it warns once and
    leaves the rest to memory.
    """
    assert access.store is not None
    missing = access.store.missing()
    missing.sort(key=lambda number: -access.groups[number].rows)
    rows = sum(access.groups[number].rows for number in missing)
    count = min(workers or _workers(access, missing), len(missing))
    sent = to_portable(access) if rows > _IN_PROCESS_ROWS and count > 1 else None
    if sent is None:
        for number in missing:
            try:
                done(access.groups[number].rows, access.build(number))
            except StoreUnusable as error:
                access.without_store(str(error))
                return False
        return True
    jobs = [[sent.hex(), number] for number in missing]
    try:
        with ProcessPool("headrace.formats.parquet.rows:build_row_group", count) as pool:
            for place, result in pool.run(jobs, lambda *_: None):
                if "unusable" in result:
                    access.without_store(result["unusable"])
                    return False
                done(access.groups[missing[place]].rows, result["bytes"])
    except WorkerLost as lost:
        group = access.groups[missing[lost.job]]
        raise CatalogError(
            f"{lost} while it prepared rows",
            file=access.files[group.file].path,
            remedy="See its own message above; what was finished is kept",
        ) from None
    return True


def _workers(access: RowAccess, missing: Sequence[int]) -> int:
    """One process per CPU, as many as fit in a quarter of the free memory."""
    largest = access.groups[missing[0]].rows if missing else 0
    fit = available_memory() // 4 // (_PROCESS_BYTES + _ROW_BYTES * largest)
    return max(1, min(allowed_cpus(), fit))


def build_row_group(job: list[Any], report: Callable[[Any], None]) -> dict[str, Any]:
    """What a worker process of `fill_store` does for one row group."""
    del report
    text, number = job
    try:
        return {"bytes": _received_access(text).build(number)}
    except StoreUnusable as error:
        return {"unusable": str(error)}


@lru_cache(maxsize=1)
def _received_access(text: str) -> RowAccess:
    access: RowAccess = from_portable(bytes.fromhex(text))
    return access
