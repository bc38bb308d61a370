"""Decoding a piece of a file: only its row groups, only the columns that are asked for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import DatasetError, HeadraceError
from headrace.formats.parquet.columns import Prepare, Rows, checked
from headrace.formats.parquet.footer import not_parquet
from headrace.formats.parquet.pieces import Piece

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ParquetStamp", "decode", "read_groups"]


@dataclass(frozen=True, slots=True)
class ParquetStamp:
    """A file as it was when it was indexed."""

    path: str
    size: int
    mtime_ns: int


def read_groups(
    file: ParquetStamp,
    groups: Sequence[int],
    columns: Sequence[str],
    dictionaries: Sequence[str] = (),
) -> pa.Table:
    """Some row groups of a file; `dictionaries` are columns to keep as codes and values."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        _check_unchanged(file)
        # Without threads of its own: whoever calls has as many as there are CPUs.
        with pq.ParquetFile(
            file.path, metadata=_metadata(file), read_dictionary=list(dictionaries)
        ) as opened:
            return opened.read_row_groups(list(groups), columns=list(columns), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        with contextlib.suppress(OSError):
            _check_unchanged(file)  # it may be written anew at this moment
        raise not_parquet(Path(file.path), error) from None


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


def decode(
    file: ParquetStamp,
    piece: Piece,
    columns: Sequence[str],
    dictionaries: Sequence[str],
    prepare: Prepare,
) -> Rows:
    """The prepared columns of a piece."""
    table = read_groups(file, range(piece.first, piece.last), columns, dictionaries)
    try:
        if getattr(prepare, "numbered", False):
            rows = prepare(table, first_row=piece.begin)  # type: ignore[call-arg]
        else:
            rows = prepare(table)
        return checked(rows, piece.rows, prepare)
    except HeadraceError as error:
        raise error.within(file=file.path) from None
    except Exception as error:
        last = piece.last - 1
        groups = f"{piece.first}" if last == piece.first else f"{piece.first} to {last}"
        error.add_note(f"while preparing row group {groups} of {file.path}")
        raise
