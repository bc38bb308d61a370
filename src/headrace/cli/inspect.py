"""`headrace inspect`: what is in a dataset."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from headrace.catalog.manifest import UNCHECKED
from headrace.cli.index import find_data, index_parquet, print_missing_roles
from headrace.cli.output import (
    add_json_option,
    each_of,
    plural,
    print_failures,
    print_table,
    readable_bytes,
)

if TYPE_CHECKING:
    from pathlib import Path

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
    from headrace.catalog.shards import ProgressBar

    tables, folders = find_data(args.path)

    def described(folder: Path) -> tuple[Catalog, dict[str, Any]]:
        catalog = Catalog.open(folder, progress=progress)
        return catalog, describe(catalog)

    with ProgressBar() as progress:
        opened, failures = each_of(folders, described)
    descriptions = [description for _, description in opened]
    sets, failed = index_parquet(tables)
    failures += failed
    found = [*descriptions, *sets]
    if len(folders) + len(tables) == 1 and found:
        args.json.write(found[0])
    else:
        errors = [failure.to_dict() for failure in failures]
        args.json.write({"datasets": descriptions, "tables": sets, "failures": errors})
    if not args.json.on_stdout:
        if len(descriptions) == 1:
            _print_one(descriptions[0])
        elif descriptions:
            _print_many(descriptions)
        for one in sets:
            _print_parquet(one)
    if args.picture and opened:
        from headrace.cli.contact_sheet import write_contact_sheet

        count = write_contact_sheet([catalog for catalog, _ in opened], args.picture, args.pairs)
        if not args.json.on_stdout:
            print(f"{count} pairs in {args.picture}")
    print_failures("inspect", failures)
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
            (name, each["episodes"], each["steps"], each["shards"], readable_bytes(each["bytes"]))
            for name, each in description["splits"].items()
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
                _whole(camera["mean_bytes"]),
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
    print_missing_roles(description)
    if description["instructions"]:
        print("\ninstructions")
    for text in description["instructions"]:
        print(f"  {text!r}")
    catalog = description["catalog"]
    print(
        f"\ncatalog: {catalog['path']}, {readable_bytes(catalog['bytes'])}, "
        f"level {catalog['level']}, format {catalog['format_version']}"
    )
    if not catalog["checksums"]:
        print(UNCHECKED)
    if description["quarantined"]:
        print(f"{description['quarantined']} episodes are quarantined")


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)


def _shape(field: dict[str, Any]) -> str:
    sizes = ["?" if size is None else str(size) for size in field["shape"]]
    shape = f"[{', '.join(sizes)}]" if sizes else "scalar"
    lists = "list of " * field["nesting"]
    return f"{lists}{shape}{'' if field['per_step'] else ', once per episode'}"


def _print_many(descriptions: list[dict[str, Any]]) -> None:
    def line(description: dict[str, Any]) -> tuple[str | int | None, ...]:
        splits = description["splits"].values()
        main = next(
            (c for c in description["cameras"] if c["key"] == description["roles"]["camera"]), None
        )
        return (
            description["registry_name"] or f"{description['name']} {description['version']}",
            sum(split["episodes"] for split in splits),
            sum(split["steps"] for split in splits),
            readable_bytes(sum(split["bytes"] for split in splits)),
            len(description["cameras"]),
            f"{main['name'].removeprefix('observation/')} {main['height']}x{main['width']}"
            if main
            else "-",
            (main["encoding"] or "?") if main else "-",
            _whole(main["mean_bytes"]) if main else None,
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
    for description in descriptions:
        print_missing_roles(description)
    print(plural(len(descriptions), "dataset"))
    for each in descriptions:
        if not each["catalog"]["checksums"]:
            print(f"{each['name']} {each['version']}: {UNCHECKED}")


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
