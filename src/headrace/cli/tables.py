"""Folders of Parquet files, for the commands that also know datasets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from headrace.cli.output import plural, print_table, readable_bytes, readable_count

__all__ = ["index_tables", "print_table_set", "print_tables"]


def index_tables(folders: Sequence[str], cache: bool, failures: list[Any]) -> list[dict[str, Any]]:
    """Open the index of each; what cannot be opened is added to the failures."""
    from headrace.catalog.parquet import ParquetCatalog
    from headrace.catalog.shards import ProgressBar
    from headrace.errors import HeadraceError

    sets = []
    with ProgressBar("indexing", "rows") as progress:
        for folder in folders:
            started = time.perf_counter()
            try:
                catalog = ParquetCatalog.open(folder, cache=cache, progress=progress)
            except HeadraceError as error:
                failures.append(error)
                continue
            sets.append(
                {
                    **catalog.to_dict(),
                    "read_files": len(catalog.changed),
                    "seconds": round(time.perf_counter() - started, 4),
                }
            )
    return sets


def print_tables(sets: Sequence[dict[str, Any]]) -> None:
    """One line each."""
    print_table(
        ["Parquet files", ">files", ">row groups", ">rows", ">columns", ">data", ">time", " "],
        (
            (
                one["path"],
                readable_count(one["files"]),
                readable_count(one["row_groups"]),
                readable_count(one["rows"]),
                str(len(one["columns"])),
                readable_bytes(one["bytes"]),
                f"{one['seconds'] * 1000:,.0f} ms",
                f"{plural(one['read_files'], 'footer')} read" if one["read_files"] else "",
            )
            for one in sets
        ),
    )


def print_table_set(one: dict[str, Any]) -> None:
    """Everything about one."""
    least, most = one["rows_a_group"]
    groups = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    print(f"{one['path']}: {plural(one['files'], 'Parquet file')}, {readable_bytes(one['bytes'])}")
    print(
        f"{plural(one['rows'], 'row')} in {plural(one['row_groups'], 'row group')} of {groups}"
        + (f"; {plural(one['empty_files'], 'file')} without rows" if one["empty_files"] else "")
    )
    print()
    print_table(["column", "type"], ((c["name"], c["type"]) for c in one["columns"]))
    if one["other_schemas"]:
        print(f"\nsome files have other columns or types ({one['other_schemas']} other schemas)")
    print(f"\nindex: {one['index'] or 'not stored: no folder for it can be written'}")
