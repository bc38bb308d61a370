"""`headrace inspect`: what is in a dataset."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from headrace.cli.output import (
    add_json_option,
    plural,
    print_table,
    readable_bytes,
    readable_count,
)

HELP = "show what is in datasets: splits, cameras, fields, instructions, pictures"
DESCRIPTION = """\
Show what is in datasets: splits, episodes, steps, cameras with size and encoding, bytes per frame,
fields with shape and type, example instructions. Datasets without an index are indexed first.

PATH is a dataset's version folder, a dataset's folder, or a root with many (one line each); or a
folder of Parquet files: files, row groups, rows, columns and what differs between files.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("path", metavar="PATH", nargs="+")
    add_json_option(parser, "everything")
    parser.add_argument(
        "--picture",
        metavar="FILE",
        help="write a contact sheet of frame pairs with their instructions (PNG or JPEG)",
    )
    parser.add_argument(
        "--pairs",
        type=int,
        metavar="N",
        help="pairs per dataset in the picture (default: 8 of one dataset, 1 of several)",
    )


def run(args: argparse.Namespace) -> int:
    """Describe everything; 1 if some dataset could not be opened."""
    from headrace.catalog.catalog import Catalog
    from headrace.catalog.describe import describe
    from headrace.catalog.parquet import has_parquet
    from headrace.catalog.shards import ProgressBar
    from headrace.cli.index import index_parquet
    from headrace.errors import HeadraceError
    from headrace.formats.rlds import find_datasets

    tables = [path for path in args.path if has_parquet(path)]
    folders = [folder for path in args.path if path not in tables for folder in find_datasets(path)]
    catalogs, descriptions, failures = [], [], []
    with ProgressBar() as progress:
        for folder in folders:
            try:
                catalog = Catalog.open(folder, progress=progress)
                descriptions.append(describe(catalog))
                catalogs.append(catalog)
            except HeadraceError as error:
                failures.append(error)
    sets = index_parquet(tables, False, failures)
    found = [*descriptions, *sets]
    if len(folders) + len(tables) == 1 and found:
        args.json.write(found[0])
    else:
        failed = [failure.to_dict() for failure in failures]
        args.json.write({"datasets": descriptions, "tables": sets, "failures": failed})
    if not args.json.on_stdout:
        if len(descriptions) == 1:
            _print_one(descriptions[0])
        elif descriptions:
            _print_many(descriptions)
        for one in sets:
            _print_parquet(one)
    if args.picture and catalogs:
        from headrace.cli.contact_sheet import write_contact_sheet

        count = write_contact_sheet(catalogs, args.picture, args.pairs)
        if not args.json.on_stdout:
            print(f"{count} pairs in {args.picture}")
    for failure in failures:
        print(f"headrace inspect: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _print_one(description: dict[str, Any]) -> None:
    known = description["registry_name"]
    print(f"{description['name']} {description['version']}  ({description['path']})")
    if known:
        print(f"known to the registry as {known}")
    print()
    print_table(
        ["split", ">episodes", ">steps", ">shards", ">bytes"],
        (
            (
                name,
                readable_count(split["episodes"]),
                readable_count(split["steps"]),
                readable_count(split["shards"]),
                readable_bytes(split["bytes"]),
            )
            for name, split in description["splits"].items()
        ),
    )
    print()
    roles = {key: role for role, key in description["roles"].items() if key}
    print_table(
        ["camera", ">size", ">channels", "type", "encoding", ">bytes/frame", " "],
        (
            (
                camera["name"],
                f"{camera['height'] or '?'} x {camera['width'] or '?'}",
                str(camera["channels"] or "?"),
                camera["dtype"],
                camera["encoding"] or "?",
                f"{camera['mean_bytes']:,.0f}" if camera["mean_bytes"] else "-",
                "main" if roles.get(camera["key"]) == "camera" else "",
            )
            for camera in description["cameras"]
        ),
    )
    print()
    cameras = {camera["key"] for camera in description["cameras"]}
    print_table(
        ["field", "type", "shape", "role"],
        (
            (
                field["key"],
                field["dtype"] + (f" ({field['encoding']})" if field["encoding"] else ""),
                _shape(field),
                roles.get(field["key"], ""),
            )
            for field in description["fields"]
            if field["key"] not in cameras
        ),
    )
    if description["instructions"]:
        print("\ninstructions")
    for text in description["instructions"]:
        print(f"  {text!r}")
    catalog = description["catalog"]
    print(
        f"\ncatalog: {catalog['path']}, {readable_bytes(catalog['bytes'])}, "
        f"level {catalog['level']}, format {catalog['format_version']}"
    )
    if description["quarantined"]:
        print(f"{description['quarantined']} episodes are quarantined")


def _shape(field: dict[str, Any]) -> str:
    sizes = ["?" if size is None else str(size) for size in field["shape"]]
    shape = f"[{', '.join(sizes)}]" if sizes else "scalar"
    lists = "list of " * field["nesting"]
    return f"{lists}{shape}{'' if field['per_step'] else ', once per episode'}"


def _print_many(descriptions: list[dict[str, Any]]) -> None:
    def line(description: dict[str, Any]) -> tuple[str, ...]:
        splits = description["splits"].values()
        main = next(
            (c for c in description["cameras"] if c["key"] == description["roles"]["camera"]), None
        )
        return (
            description["registry_name"] or f"{description['name']} {description['version']}",
            readable_count(sum(split["episodes"] for split in splits)),
            readable_count(sum(split["steps"] for split in splits)),
            readable_bytes(sum(split["bytes"] for split in splits)),
            str(len(description["cameras"])),
            f"{main['name'].removeprefix('observation/')} {main['height']}x{main['width']}"
            if main
            else "-",
            (main["encoding"] or "?") if main else "-",
            f"{main['mean_bytes']:,.0f}" if main and main["mean_bytes"] else "-",
            next(iter(description["instructions"]), ""),
        )

    print_table(
        [
            "dataset",
            ">episodes",
            ">steps",
            ">bytes",
            ">cameras",
            "main camera",
            "encoding",
            ">bytes/frame",
            "example instruction",
        ],
        map(line, descriptions),
    )
    print(plural(len(descriptions), "dataset"))


def _print_parquet(one: dict[str, Any]) -> None:
    least, most = one["rows_per_group"]
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
    print(f"\nindex: {one['index'] or 'not stored: there is no writable folder for it'}")
