"""Random access to rows: from memory, from the store, or decoded from the Parquet file."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from headrace.errors import UsageError
from headrace.formats.parquet.cache import CacheStatistics, PieceCache
from headrace.formats.parquet.columns import Prepare, Rows
from headrace.formats.parquet.decoding import ParquetStamp, decode
from headrace.formats.parquet.pieces import Pieces
from headrace.formats.parquet.records import Records, columns_of
from headrace.formats.parquet.store import PieceStore, StoreUnusable
from headrace.sampling.bijection import Ints

__all__ = ["RowAccess"]

_log = logging.getLogger("headrace")


class RowAccess:
    """`access.rows(first, count)`: prepared columns of rows, counted through all files.

    Threads may share it, and it may be sent to other processes, where it starts with empty memory.
    """

    def __init__(
        self,
        files: Sequence[ParquetStamp],
        pieces: Pieces,
        columns: Sequence[str],
        prepare: Prepare,
        *,
        dictionaries: Sequence[str] = (),
        cache_bytes: int,
        store: PieceStore | None = None,
    ) -> None:
        self.files, self.pieces, self.columns = files, pieces, tuple(columns)
        self.prepare = prepare
        self.store = store
        self._dictionaries = tuple(dictionaries)
        self._store_failed = False
        self._cache = PieceCache(self._make, cache_bytes)

    def __repr__(self) -> str:
        return f"<RowAccess {self.pieces!r}, {'stored' if self.store else 'in memory'}>"

    def rows(self, first: int, count: int) -> Rows:
        """The columns of rows, in memory of their own."""
        parts = self.pieces.parts(first, count)
        if len(parts) == 1:
            number, begin, end = parts[0]
            return self._cache[number].rows(begin, end)
        found = [self._cache[number].rows(begin, end) for number, begin, end in parts]
        names = found[0].keys()
        for rows, (number, _, _) in zip(found, parts, strict=True):
            if rows.keys() != names:
                raise UsageError(
                    f"prepare gave the columns {', '.join(rows)} here and {', '.join(names)} "
                    "for the rows before",
                    file=self.files[self.pieces[number].file].path,
                    remedy="It gives the same columns for every row group",
                )
        return {name: np.concatenate([rows[name] for rows in found]) for name in names}

    def windows(self, firsts: Ints, count: int) -> Rows:
        """Many windows of `count` rows as [windows, rows, ...]."""
        numbers = np.searchsorted(self.pieces.ends, firsts, side="right")
        begins = firsts - self.pieces.starts[numbers]
        cache = self._cache
        found = [cache[number] for number in numbers.tolist()]
        dtype = found[0].dtype
        if len({records.dtype for records in found}) > 1:
            return self._stacked(firsts, count)
        # Joining stretches of memory takes a third of the time of copying them one by one.
        each = [
            records.raw[begin : begin + count]
            for records, begin in zip(found, begins.tolist(), strict=True)
        ]
        for place in np.flatnonzero(firsts + count > self.pieces.ends[numbers]).tolist():
            each[place] = Records.of(self.rows(int(firsts[place]), count)).raw
        data = np.frombuffer(bytearray().join(each), np.uint8)
        return columns_of(data.reshape(len(firsts), count, dtype.itemsize), dtype)

    def _stacked(self, firsts: Ints, count: int) -> Rows:
        """As `windows`, where texts are not as wide in every piece."""
        each = [self.rows(first, count) for first in firsts.tolist()]
        return {name: np.stack([rows[name] for rows in each]) for name in each[0]}

    def piece(self, number: int) -> Records:
        """A whole piece; whoever asks for it in advance finds it at hand later."""
        return self._cache[number]

    def load(self) -> None:
        """Bring everything into memory: the store's pages, or all pieces, whatever the limit."""
        if self.store is None:
            self._cache.keep_all()
        for number in range(len(self.pieces)):
            self._cache[number].data.reshape(-1)[::4096].max(initial=0)  # touches every page

    def build(self, number: int) -> int:
        """Make a piece for the store, unless it is there; its bytes. Raises `StoreUnusable`."""
        assert self.store is not None
        with self.store.making(number):
            records = self.store.find(number)
            if records is None:
                records = self._decode(number)
                self.store.put(number, records)
        return records.nbytes

    def without_store(self, why: str) -> None:
        """Say that pieces are kept in memory from now on."""
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
        with self.store.making(number):
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
        piece = self.pieces[number]
        file = self.files[piece.file]
        rows = decode(file, piece, self.columns, self._dictionaries, self.prepare)
        return Records.of(rows)
