"""Random access to rows: from memory, from the store, or decoded from the Parquet file."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.errors import UsageError
from headrace.formats.parquet.cache import CacheStatistics, PieceCache
from headrace.formats.parquet.columns import Prepare, Rows
from headrace.formats.parquet.decoding import ParquetStamp, decode
from headrace.formats.parquet.pieces import Pieces
from headrace.formats.parquet.store import PieceStore, StoreUnusable

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
        """Views of the rows' columns; a copy where they lie in two pieces."""
        parts = self.pieces.parts(first, count)
        if len(parts) == 1:
            number, begin, end = parts[0]
            return {name: column[begin:end] for name, column in self._cache[number].items()}
        found = [(self._cache[number], begin, end) for number, begin, end in parts]
        names = found[0][0].keys()
        for (rows, _, _), (number, _, _) in zip(found, parts, strict=True):
            if rows.keys() != names:
                raise UsageError(
                    f"prepare gave the columns {', '.join(rows)} here and {', '.join(names)} "
                    "for the rows before",
                    file=self.files[self.pieces[number].file].path,
                    remedy="It gives the same columns for every row group",
                )
        return {
            name: np.concatenate([rows[name][begin:end] for rows, begin, end in found])
            for name in names
        }

    def piece(self, number: int) -> Rows:
        """A whole piece; whoever asks for it in advance finds it at hand later."""
        return self._cache[number]

    def build(self, number: int) -> int:
        """Make a piece for the store, unless it is there; its bytes. Raises `StoreUnusable`."""
        assert self.store is not None
        with self.store.making(number):
            rows = self.store.find(number)
            if rows is None:
                rows = self._decode(number)
                self.store.put(number, rows)
        return sum(column.nbytes for column in rows.values())

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

    def _make(self, number: int) -> tuple[Rows, int]:
        if self.store is not None and not self._store_failed:
            rows = self.store.find(number)
            if rows is not None:
                return rows, 0
            with self.store.making(number):
                rows = self.store.find(number)  # another process may have been faster
                if rows is not None:
                    return rows, 0
                rows = self._decode(number)
                try:
                    self.store.put(number, rows)
                except StoreUnusable as error:
                    self.without_store(str(error))
                else:
                    mapped = self.store.find(number)
                    if mapped is not None:
                        return mapped, 0
        else:
            rows = self._decode(number)
        return rows, sum(column.nbytes for column in rows.values())

    def _decode(self, number: int) -> Any:
        piece = self.pieces[number]
        file = self.files[piece.file]
        return decode(file, piece, self.columns, self._dictionaries, self.prepare)
