"""Prepared columns, row by row: the bytes of a window lie together, whatever its columns.

A window is then one copy of one stretch of memory, or of the page cache, instead of one a column,
and on a disk one place instead of several.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.formats.parquet.columns import Rows

__all__ = ["Records", "columns_of", "record_type"]


@lru_cache(maxsize=256)
def record_type(fields: tuple[tuple[str, str, tuple[int, ...]], ...]) -> np.dtype[Any]:
    """A field a column, of name, type and shape; the same object for the same fields."""
    return np.dtype(list(fields))


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """The rows of a piece.

    >>> records = Records.of({"a": np.arange(3), "b": np.zeros((3, 2), np.uint8)})
    >>> records.rows(1, 3)["a"].tolist(), records.data.shape
    ([1, 2], (3, 10))
    """

    dtype: np.dtype[Any]  #: a field a column, packed
    data: NDArray[np.uint8]  #: [rows, bytes]
    raw: memoryview = field(init=False, repr=False)  #: the same: quicker to cut than an array

    def __post_init__(self) -> None:
        object.__setattr__(self, "raw", self.data.data)

    @staticmethod
    def of(rows: Rows) -> Records:
        """Columns of equal length, put together."""
        dtype = record_type(
            tuple((name, column.dtype.str, column.shape[1:]) for name, column in rows.items())
        )
        count = len(next(iter(rows.values())))
        whole = np.empty(count, dtype)
        for name, column in rows.items():
            whole[name] = column
        return Records(dtype, whole.view(np.uint8).reshape(count, dtype.itemsize))

    def __len__(self) -> int:
        return len(self.data)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.data.nbytes

    def rows(self, begin: int, end: int) -> Rows:
        """The columns of some rows, in memory of their own."""
        return columns_of(self.data[begin:end], self.dtype)


def columns_of(data: NDArray[np.uint8], dtype: np.dtype[Any]) -> Rows:
    """Bytes of [..., rows, bytes of a row] as columns of [..., rows, ...].

    Numbers are copied together. Vectors of bytes, most of what there is to copy, stay where they
    are, with the rest of a row between one and the next.
    """
    whole = np.ascontiguousarray(data).view(dtype)[..., 0]
    columns = {name: whole[name] for name in dtype.names or ()}
    return {
        name: column if column.dtype == np.uint8 else np.ascontiguousarray(column)
        for name, column in columns.items()
    }
