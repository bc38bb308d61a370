"""Parquet files: their footers, which row groups are decoded together, and reading those.

In this package Arrow's Parquet is imported where it is used: most programs that import headrace
read no Parquet, and processes that find all their rows in a store need none of it.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.errors import DatasetError
from headrace.sampling.bijection import Ints

if TYPE_CHECKING:
    import pyarrow as pa

#: Names and Arrow types.
Columns = tuple[tuple[str, str], ...]

_MAGIC = b"PAR1"


@dataclass(frozen=True, slots=True)
class ParquetStamp:
    """A file as it was when it was indexed."""

    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Footer:
    """What a file says about its contents."""

    group_rows: tuple[int, ...]  #: rows of each row group
    columns: Columns


def read_footer(path: Path) -> Footer:
    """Read the footer of one file, or say why it has none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            metadata, schema = file.metadata, file.schema_arrow
            rows = tuple(metadata.row_group(n).num_rows for n in range(metadata.num_row_groups))
    except (pa.ArrowException, OSError) as error:
        raise _not_parquet(path, error) from None
    return Footer(rows, tuple((field.name, str(field.type)) for field in schema))


class RowGroup(NamedTuple):
    """A row group of a file, or several small neighbours that are decoded together."""

    file: int  #: number of the file
    first: int  #: first row group in the file
    stop: int  #: one past the last row group
    rows: int
    first_row: int  #: its first row, counted in the file


class RowGroups:
    """All rows of all files as row groups.

    A row group is the least that can be decoded. Small ones of one file are taken together up to
    `least_rows`: otherwise files of thousands of tiny groups would cost a store one file each, and
    a local shuffle would mix only a few rows.

    >>> groups = RowGroups([(10, 10, 10), (), (50,)], least_rows=20)
    >>> [tuple(group) for group in groups]
    [(0, 0, 2, 20, 0), (0, 2, 3, 10, 20), (2, 0, 1, 50, 0)]
    >>> groups.slices(first=25, count=10)
    [(1, 5, 10), (2, 0, 5)]
    """

    def __init__(self, group_rows: Sequence[Sequence[int]], least_rows: int = 1) -> None:
        self._groups: list[RowGroup] = []
        for file, counts in enumerate(group_rows):
            first = rows = first_row = 0
            for number, more in enumerate(counts):
                rows += more
                if rows >= least_rows or (number == len(counts) - 1 and rows):
                    self._groups.append(RowGroup(file, first, number + 1, rows, first_row))
                    first, rows, first_row = number + 1, 0, first_row + rows
        self.ends: Ints = np.cumsum([group.rows for group in self._groups], dtype=np.int64)
        #: First row of each, counted through all files.
        self.starts: Ints = np.concatenate([np.zeros(1, np.int64), self.ends])[:-1]
        self._ends: list[int] = self.ends.tolist()  # bisecting a list of numbers is faster

    def __repr__(self) -> str:
        return f"<RowGroups: {len(self)} of {int(self.ends[-1]) if len(self) else 0:,} rows>"

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[RowGroup]:
        return iter(self._groups)

    def __getitem__(self, number: int) -> RowGroup:
        return self._groups[number]

    def slices(self, first: int, count: int) -> list[tuple[int, int, int]]:
        """(row group, from, to) of each row group that rows, counted through all files, lie in."""
        found = []
        number = bisect_right(self._ends, first)
        begin = self._ends[number - 1] if number else 0
        while count > 0:
            end = self._ends[number]
            take = min(count, end - first)
            found.append((number, first - begin, first - begin + take))
            first, count, begin, number = first + take, count - take, end, number + 1
        return found


def read_row_groups(
    file: ParquetStamp, group: RowGroup, columns: Sequence[str], dictionaries: Sequence[str] = ()
) -> pa.Table:
    """Columns of a row group; `dictionaries` are columns to keep as codes and values."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        _check_unchanged(file)
        # Without Arrow's threads: the caller runs as many as there are CPUs.
        with pq.ParquetFile(
            file.path, metadata=_metadata(file), read_dictionary=list(dictionaries)
        ) as opened:
            numbers = list(range(group.first, group.stop))
            return opened.read_row_groups(numbers, columns=list(columns), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        with contextlib.suppress(OSError):
            _check_unchanged(file)  # it may be being rewritten
        raise _not_parquet(Path(file.path), error) from None


def _check_unchanged(file: ParquetStamp) -> None:
    found = os.stat(file.path)
    if (found.st_size, found.st_mtime_ns) != (file.size, file.mtime_ns):
        raise DatasetError(
            "the file changed since it was indexed",
            file=file.path,
            remedy="Open the set again (it indexes what changed), or restore the file",
        ) from None


@lru_cache(maxsize=16)  # a footer of many row groups takes milliseconds, and a megabyte
def _metadata(file: ParquetStamp) -> Any:
    import pyarrow.parquet as pq

    return pq.read_metadata(file.path)


def _not_parquet(path: Path, error: Exception) -> DatasetError:
    """What is wrong with a file that cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(4)
            file.seek(0, 2)
            size = file.tell()
            file.seek(max(0, size - 4))
            tail = file.read(4)
    except OSError as trouble:
        return DatasetError(
            f"the file cannot be read: {trouble.strerror}",
            file=str(path),
            remedy="Check that it exists and is readable",
        )
    if size == 0:
        problem, remedy = "the file has no bytes", "Write it again, or remove it"
    elif head != _MAGIC:
        problem = f"this is not a Parquet file: it begins with {head!r}"
        remedy = "Leave it out, or give it another suffix"
    elif tail != _MAGIC:
        problem = f"the file is cut off: it has {size:,} bytes and no footer"
        remedy = "Copy or write it again"
    else:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        problem = f"the Parquet file cannot be read: {first}"
        remedy = "It is damaged or encrypted: copy or write it again"
    return DatasetError(problem, file=str(path), remedy=remedy)
