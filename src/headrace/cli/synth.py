"""`headrace synth`: datasets to play, test and measure with."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from typing import Any

HELP = "write synthetic RLDS datasets in TFDS's exact layout"
DESCRIPTION = """\
Write synthetic RLDS datasets in TFDS's exact layout, without TensorFlow.

Preset oxe29: the 29 datasets of the reference mixture with their real names, versions, keys,
resolutions and encodings; every frame shows which dataset, episode and step it is, and a moving
object whose place and displacement are the state and the action. Preset plain: the same without
labels and grain, evenly lit, with a larger object: for small models to learn from. Preset odd:
small datasets with everything unusual that TFDS can write.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("dir", metavar="DIR", help="folder to write the datasets to")
    parser.add_argument("--preset", choices=("oxe29", "plain", "odd"), default="oxe29")
    parser.add_argument(
        "--episodes", type=int, default=8, metavar="N", help="episodes a dataset (default: 8)"
    )
    parser.add_argument("--seed", type=int, default=0, help="another seed, other pictures")
    parser.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        help="only this dataset, by its registry name; may be repeated",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: all CPUs)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Write the datasets."""
    from dataclasses import asdict

    from headrace.cli.output import plural, print_json, readable_bytes
    from headrace.testing.synth import synthesize

    started = time.perf_counter()
    with ExitStack() as stack:
        report = _bar(stack) if sys.stderr.isatty() else None
        written = synthesize(
            args.dir,
            preset=args.preset,
            episodes=args.episodes,
            seed=args.seed,
            only=args.only,
            workers=args.workers,
            report=report,
        )
    seconds = time.perf_counter() - started
    if args.json:
        print_json([{**asdict(one), "path": str(one.path)} for one in written])
        return 0
    episodes = plural(sum(one.episodes for one in written), "episode")
    frames = plural(sum(one.frames for one in written), "image")
    size = readable_bytes(sum(one.bytes for one in written))
    print(
        f"{plural(len(written), 'dataset')}, {episodes}, {frames}, {size} written to {args.dir} "
        f"in {seconds:.1f} s"
    )
    return 0


def _bar(stack: ExitStack) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    bar = stack.enter_context(
        Progress(
            TextColumn("writing {task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("images"),
            TimeLeft(),
            console=Console(stderr=True),
            transient=True,
        )
    )
    task = bar.add_task("", total=None)

    def report(done: int, total: int, name: str) -> None:
        bar.update(task, completed=done, total=total, description=name)

    return report
