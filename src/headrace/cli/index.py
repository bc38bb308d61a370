"""`headrace index`: build the catalogs of datasets."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.output import (
    add_json_option,
    plural,
    print_table,
    readable_bytes,
    readable_count,
)
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.catalog.catalog import Catalog
    from headrace.catalog.shards import ProgressBar, ShardPool

HELP = "index datasets, once: where every frame of every episode lies"
DESCRIPTION = """\
Index datasets: walk their shards once and record where every frame of every episode lies.

PATH is a dataset's version folder, a dataset's folder, or a root with many; or a folder of Parquet
files, whose footers are read. What is already indexed is only checked for changes; an interrupted
run resumes where it was; several may run at the same time.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("path", metavar="PATH", nargs="+")
    parser.add_argument(
        "--level",
        choices=("episodes", "frames"),
        default="frames",
        help="episodes: only where records lie (very fast); frames: everything (default)",
    )
    parser.add_argument(
        "--quarantine",
        action="store_true",
        help="leave out episodes that are damaged or whose shard is missing, instead of stopping",
    )
    parser.add_argument(
        "--cache",
        action="store_true",
        help="keep catalogs below HEADRACE_CACHE even where the data's own folder can be written",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: all CPUs)")
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Index everything; 1 if some dataset could not be indexed."""
    from headrace.catalog.parquet import has_parquet
    from headrace.catalog.shards import ProgressBar, ShardPool
    from headrace.formats.rlds import find_datasets

    tables = [path for path in args.path if has_parquet(path)]
    folders = [folder for path in args.path if path not in tables for folder in find_datasets(path)]
    rows: list[dict[str, Any]] = []
    failures: list[HeadraceError] = []
    started = time.perf_counter()
    with ShardPool(args.workers) as pool, ProgressBar() as progress:
        for folder in folders:
            try:
                rows.append(_index(folder, args, pool, progress))
            except HeadraceError as error:
                failures.append(error)
    seconds = time.perf_counter() - started
    sets = index_parquet(tables, args.cache, failures)
    failed = [failure.to_dict() for failure in failures]
    args.json.write({"datasets": rows, **({"tables": sets} if tables else {}), "failures": failed})
    if not args.json.on_stdout:
        if rows:
            _print(rows, seconds)
        if sets:
            _print_parquet(sets)
    for failure in failures:
        print(f"headrace index: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _index(
    folder: Path, args: argparse.Namespace, pool: ShardPool, progress: ProgressBar
) -> dict[str, Any]:
    from headrace.catalog.catalog import Catalog

    started, before = time.perf_counter(), progress.steps
    catalog = Catalog.open(
        folder,
        level=args.level,
        on_damage="quarantine" if args.quarantine else "raise",
        cache=args.cache,
        pool=pool,
        progress=progress,
    )
    return {
        **_summary(catalog),
        "seconds": round(time.perf_counter() - started, 4),
        "scanned_steps": progress.steps - before,
    }


def index_parquet(
    folders: list[str], cache: bool, failures: list[HeadraceError]
) -> list[dict[str, Any]]:
    """Index folders of Parquet files; errors are added to the failures."""
    from headrace.catalog.parquet import ParquetCatalog
    from headrace.catalog.shards import ProgressBar

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


def _summary(catalog: Catalog) -> dict[str, Any]:
    shards = catalog.manifest.shards
    steps = sum(stamp.steps for stamp in shards)
    frames = catalog.level == "frames"
    return {
        "name": catalog.name,
        "version": catalog.version,
        "path": str(catalog.path),
        "catalog": str(catalog.folder),
        "level": catalog.level,
        "shards": len(shards),
        "episodes": len(catalog),
        "steps": steps if frames else None,
        "frames": steps * len(catalog.schema.cameras) if frames else None,
        "data_bytes": sum(max(0, stamp.size) for stamp in shards),
        "catalog_bytes": catalog.nbytes,
        "quarantined": len(catalog.quarantined),
    }


def _print(rows: list[dict[str, Any]], seconds: float) -> None:
    print_table(
        [
            "dataset",
            ">shards",
            ">episodes",
            ">steps",
            ">frames",
            ">data",
            ">catalog",
            ">time",
            " ",
        ],
        (
            (
                f"{row['name']} {row['version']}",
                readable_count(row["shards"]),
                readable_count(row["episodes"]),
                readable_count(row["steps"]),
                readable_count(row["frames"]),
                readable_bytes(row["data_bytes"]),
                readable_bytes(row["catalog_bytes"]),
                f"{row['seconds'] * 1000:,.0f} ms",
                f"{row['quarantined']} quarantined" if row["quarantined"] else "",
            )
            for row in rows
        ),
    )
    frames = sum(row["frames"] or 0 for row in rows)
    scanned = sum(row["scanned_steps"] for row in rows)
    print(
        f"{plural(len(rows), 'dataset')}, {plural(sum(r['episodes'] for r in rows), 'episode')}, "
        f"{plural(frames, 'frame')} in {seconds:.2f} s"
        + (f" ({scanned:,} steps scanned)" if scanned else " (all were already indexed)")
    )


def _print_parquet(sets: list[dict[str, Any]]) -> None:
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
