"""The end of a Parquet file: how many rows its row groups have, and its columns.

Here and beside it Arrow's Parquet is imported when it is used: most programs that import headrace
read no Parquet, and processes that find all their rows in a store need none of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.errors import DatasetError

__all__ = ["Columns", "Footer", "not_parquet", "read_footer"]

#: Names and Arrow types.
Columns = tuple[tuple[str, str], ...]

_MAGIC = b"PAR1"


@dataclass(frozen=True, slots=True)
class Footer:
    """What a file says of itself."""

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
        raise not_parquet(path, error) from None
    return Footer(rows, tuple((field.name, str(field.type)) for field in schema))


def not_parquet(path: Path, error: Exception) -> DatasetError:
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
            remedy="Check that it is there and readable",
        )
    if size == 0:
        problem, remedy = "the file has no bytes", "Write it again, or remove it"
    elif head != _MAGIC:
        problem = f"this is no Parquet file: it begins with {head!r}"
        remedy = "Leave it out, or give it another suffix"
    elif tail != _MAGIC:
        problem = f"the file is cut off: it has {size:,} bytes and no footer"
        remedy = "Copy or write it again"
    else:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        problem = f"the Parquet file cannot be read: {first}"
        remedy = "It is damaged or encrypted: copy or write it again"
    return DatasetError(problem, file=str(path), remedy=remedy)
