"""`headrace synth`: synthetic datasets to try, test and measure with."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from headrace.cli.output import (
    add_json_option,
    add_workers_option,
    plural,
    progress_bar,
    readable_bytes,
)
from headrace.errors import UsageError

HELP = "write synthetic datasets: RLDS in TFDS's exact layout, or Parquet"
DESCRIPTION = """\
Write synthetic RLDS datasets in TFDS's exact layout, without TensorFlow.

Preset oxe29: the 29 datasets of the reference mixture with their real names, versions, keys,
resolutions and encodings; every frame shows which dataset, episode and step it is, and a moving
object whose place and displacement are the state and the action. Preset plain: the same without
labels and grain, evenly lit, with a larger object: for small models to learn from. Preset odd:
small datasets with everything unusual that TFDS can write. Preset network: network measurements in
180 + 20 Parquet files (DIR/train, DIR/test); --rows 425000 makes them 1.8 GB.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("dir", metavar="DIR", help="folder to write the datasets to")
    parser.add_argument("--preset", choices=("oxe29", "plain", "odd", "network"), default="oxe29")
    parser.add_argument(
        "--episodes",
        type=int,
        default=8,
        metavar="N",
        help="training episodes per dataset (default: 8)",
    )
    parser.add_argument(
        "--rows", type=int, metavar="N", help="preset network: rows per file (default: 4096)"
    )
    parser.add_argument(
        "--row-group",
        type=int,
        metavar="N",
        help="preset network: rows per row group (default: 1048576, as pyarrow's)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of all content (default: 0)")
    parser.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        help="only this dataset, by its registry name, or split (preset network); may be repeated",
    )
    add_workers_option(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Write the datasets."""
    from headrace.testing import synthesize, synthesize_network

    network = args.preset == "network"
    own = {"rows": args.rows, "row_group": args.row_group}
    own = {name: value for name, value in own.items() if value is not None}
    if own and not network:
        raise UsageError(
            f"--{next(iter(own)).replace('_', '-')} needs the preset network, not {args.preset}",
            remedy="Leave it out, or add --preset network",
        )
    started = time.perf_counter()
    written: Sequence[Any]
    with progress_bar("writing", "rows" if network else "images") as report:
        common = {name: getattr(args, name) for name in ("seed", "only", "workers")}
        if network:
            written = synthesize_network(args.dir, report=report, **common, **own)
        else:
            written = synthesize(args.dir, args.preset, args.episodes, report=report, **common)
    seconds = time.perf_counter() - started
    args.json.write({"datasets": [{**asdict(one), "path": str(one.path)} for one in written]})
    if args.json.on_stdout:
        return 0
    named = (
        {"files": "file", "rows": "row"} if network else {"episodes": "episode", "frames": "image"}
    )
    counts = [] if network else [plural(len(written), "dataset")]
    for field, word in named.items():
        counts.append(plural(sum(getattr(one, field) for one in written), word))
    size = readable_bytes(sum(one.bytes for one in written))
    print(f"{', '.join(counts)}, {size} written to {args.dir} in {seconds:.1f} s")
    return 0
