"""`headrace index`: build the catalogs of datasets."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.catalog.manifest import UNCHECKED
from headrace.cli.output import (
    add_json_option,
    add_workers_option,
    each_of,
    plural,
    print_damage,
    print_failures,
    print_table,
    readable_bytes,
)

if TYPE_CHECKING:
    from headrace.catalog.shards import ProgressBar, ShardPool
    from headrace.errors import HeadraceError

HELP = "index datasets, once: where every frame of every episode lies"
DESCRIPTION = """\
Index datasets: read their shards once, check every record's checksum, and record where every frame
of every episode lies, with a checksum of its own. A frame that is damaged later is never delivered.

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
        "--quick",
        action="store_true",
        help="hop over the images instead of reading them: damaged records are not found, and "
        "frames are not checked when they are read (run again without it to add the checksums)",
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
    add_workers_option(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Index everything; 1 if some dataset could not be indexed."""
    from headrace.catalog.shards import ProgressBar, ShardPool

    tables, folders = find_data(args.path)
    started = time.perf_counter()
    with ShardPool(args.workers) as pool, ProgressBar() as progress:
        rows, failures = each_of(folders, lambda folder: _index(folder, args, pool, progress))
    seconds = time.perf_counter() - started
    sets, failed = index_parquet(tables, args.cache)
    failures += failed
    args.json.write(
        {
            "datasets": rows,
            **({"tables": sets} if tables else {}),
            "failures": [failure.to_dict() for failure in failures],
        }
    )
    if not args.json.on_stdout:
        if rows:
            _print(rows, seconds)
        if sets:
            _print_parquet(sets)
    print_failures("index", failures)
    return 1 if failures else 0


def find_data(paths: list[str]) -> tuple[list[str], list[Path]]:
    """The folders of Parquet files among some paths, and the datasets at and below the others."""
    from headrace.catalog.parquet import has_parquet
    from headrace.formats.rlds import find_datasets

    tables = [path for path in paths if has_parquet(path)]
    return tables, [each for path in paths if path not in tables for each in find_datasets(path)]


def index_parquet(
    folders: list[str], cache: bool = False
) -> tuple[list[dict[str, Any]], list[HeadraceError]]:
    """Index folders of Parquet files; what is in them, and what failed."""
    from headrace.catalog.parquet import ParquetCatalog
    from headrace.catalog.shards import ProgressBar

    def index(folder: str) -> dict[str, Any]:
        started = time.perf_counter()
        catalog = ParquetCatalog.open(folder, cache=cache, progress=progress)
        seconds = round(time.perf_counter() - started, 4)
        return {**catalog.to_dict(), "read_files": len(catalog.changed), "seconds": seconds}

    with ProgressBar("indexing", "rows") as progress:
        return each_of(folders, index)


def _index(
    folder: Path, args: argparse.Namespace, pool: ShardPool, progress: ProgressBar
) -> dict[str, Any]:
    from headrace.catalog.catalog import Catalog
    from headrace.config import plain

    started, before = time.perf_counter(), progress.steps
    catalog = Catalog.open(
        folder,
        level=args.level,
        quick=args.quick,
        on_damage="quarantine" if args.quarantine else "raise",
        cache=args.cache,
        pool=pool,
        progress=progress,
    )
    shards = catalog.manifest.shards
    steps = sum(stamp.steps for stamp in shards) if catalog.level == "frames" else None
    return {
        "name": catalog.name,
        "version": catalog.version,
        "path": str(catalog.path),
        "catalog": str(catalog.folder),
        "level": catalog.level,
        "shards": len(shards),
        "episodes": len(catalog),
        "steps": steps,
        "frames": None if steps is None else steps * len(catalog.schema.cameras),
        "data_bytes": sum(max(0, stamp.size) for stamp in shards),
        "catalog_bytes": catalog.nbytes,
        "checksums": catalog.checksums,
        "quarantined": len(catalog.quarantined),
        "damage": [asdict(damage) for damage in catalog.manifest.quarantine],
        "missing_roles": [plain(each) for each in catalog.roles.missing],
        "seconds": round(time.perf_counter() - started, 4),
        "scanned_steps": progress.steps - before,
    }


def _print(rows: list[dict[str, Any]], seconds: float) -> None:
    print_table(
        ["dataset", ">shards", ">episodes", ">steps", ">frames", ">data", ">catalog", ">time", ""],
        (
            (
                f"{row['name']} {row['version']}",
                *(row[count] for count in ("shards", "episodes", "steps", "frames")),
                readable_bytes(row["data_bytes"]),
                readable_bytes(row["catalog_bytes"]),
                f"{row['seconds'] * 1000:,.0f} ms",
                f"{row['quarantined']} quarantined" if row["quarantined"] else "",
            )
            for row in rows
        ),
    )
    for row in rows:
        if not row["checksums"] and row["level"] == "frames":
            print(f"{row['name']} {row['version']}: {UNCHECKED}")
        if row["damage"]:
            episodes = plural(row["quarantined"], "episode")
            print(f"{row['name']} {row['version']}: {episodes} left out")
            print_damage(_runs(row["damage"]))
        print_missing_roles(row)
    frames = sum(row["frames"] or 0 for row in rows)
    scanned = sum(row["scanned_steps"] for row in rows)
    print(
        f"{plural(len(rows), 'dataset')}, {plural(sum(r['episodes'] for r in rows), 'episode')}, "
        f"{plural(frames, 'frame')} in {seconds:.2f} s"
        + (f" ({scanned:,} steps scanned)" if scanned else " (all were already indexed)")
    )


def _runs(damage: list[dict[str, Any]]) -> list[str]:
    """A line for each problem; neighbouring episodes with the same one (a lost shard) share it."""
    runs: list[tuple[dict[str, Any], int]] = []  # the first of a run, and the last record
    for one in sorted(damage, key=lambda each: (each["file"], each["record"])):
        if runs and one == {**runs[-1][0], "record": runs[-1][1] + 1}:
            runs[-1] = runs[-1][0], one["record"]
        else:
            runs.append((one, one["record"]))
    return [
        f"{one['file']}, offset {one['offset']}, "
        + (f"episode {last}" if last == one["record"] else f"episodes {one['record']} to {last}")
        + f": {one['problem']}"
        for one, last in runs
    ]


def print_missing_roles(dataset: dict[str, Any]) -> None:
    """Which fields the registry names and the dataset does not have, in one line."""
    from headrace.catalog.source import MissingRole, missing_line

    if line := missing_line([MissingRole(**each) for each in dataset["missing_roles"]]):
        print(f"{dataset['name']} {dataset['version']}: {line}")


def _print_parquet(sets: list[dict[str, Any]]) -> None:
    print_table(
        ["Parquet files", ">files", ">row groups", ">rows", ">columns", ">data", ">time", " "],
        (
            (
                one["path"],
                *(one[count] for count in ("files", "row_groups", "rows")),
                len(one["columns"]),
                readable_bytes(one["bytes"]),
                f"{one['seconds'] * 1000:,.0f} ms",
                f"{plural(one['read_files'], 'footer')} read" if one["read_files"] else "",
            )
            for one in sets
        ),
    )
