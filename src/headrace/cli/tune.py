"""`headrace tune`: the fastest options of a backend on this machine, and why."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.output import (
    add_json_option,
    plural,
    print_resume_hint,
    print_table,
    run_line,
)

if TYPE_CHECKING:
    from headrace.tuning.attempt import Attempt
    from headrace.tuning.search.asked import Asked
    from headrace.tuning.search.space import Space
    from headrace.tuning.search.tune import Tuned

HELP = "search a backend's options under a memory floor and a time budget; the winner and why"
DESCRIPTION = """\
Searches the options of a backend by itself: first one at a time, each beside a run of the best so
far, then combinations (with Optuna where it is installed), and at the end the winner against the
defaults, in turns; only that is reported as a gain. What is delivered stays the same: shuffling,
samples and order are left alone. headrace itself has nothing to tune; asked for it, this checks.

  headrace tune oxe29 root=/data/oxe --backend tfdata
  headrace tune mine.yaml --backend torch --minutes 5 --seconds 4 torch.workers=8
  headrace tune oxe29 root=/data/oxe

Options given as KEY=VALUE stay as given. Runs that fail are notes, not the end. Ctrl-C keeps the
best so far; the same command goes on. Results: OUT/tuned.yaml, log.md, result.json, runs/.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("mixture", metavar="MIXTURE", help="a YAML file or a packaged mixture")
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="of every run")
    parser.add_argument("--backend", default="headrace", help="what to tune (default: headrace)")
    parser.add_argument(
        "--minutes", type=float, default=15.0, help="of the whole search (default: 15)"
    )
    parser.add_argument(
        "--min-available",
        metavar="SIZE",
        default="5GiB",
        help="memory that must stay free (default: 5GiB)",
    )
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="measured time of a run (default: 8)"
    )
    parser.add_argument("--warmup", type=int, default=8, help="batches before (default: 8)")
    parser.add_argument(
        "--reorder",
        action="store_true",
        help="also try options that shuffle worse or better, as shuffle buffers",
    )
    parser.add_argument("--out", type=Path, help="folder (default: tunes/MIXTURE_BACKEND)")
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.loader.settings import parse_size
    from headrace.measure.bench.settings import BenchSettings
    from headrace.tuning.guard import Guard
    from headrace.tuning.search.asked import Asked
    from headrace.tuning.search.tune import tune

    asked = Asked(
        args.mixture,
        tuple(args.overrides),
        args.backend,
        BenchSettings(seconds=args.seconds, warmup=args.warmup),
        Guard(min_available=parse_size(args.min_available)),
        args.minutes,
        args.reorder,
    )
    folder = args.out or Path("tunes") / f"{Path(args.mixture).stem}_{args.backend}"
    quiet = args.json.on_stdout
    with run_line(quiet=quiet, step=False) as watch:
        tuned = tune(
            asked,
            folder,
            watch=watch,
            tell=(lambda *_: None) if quiet else _tell,
            begun=(lambda _: None) if quiet else lambda space: _announce(space, asked),
        )
    args.json.write(json.loads((folder / "result.json").read_text()))
    if not quiet:
        _print(tuned, asked)
    if tuned.found.ended == "interrupted":
        print_resume_hint()
        return 130
    return 1 if tuned.found.ended == "nothing runs" else 0


# -- what is printed -----------------------------------------------------------------------------


def _announce(space: Space, asked: Asked) -> None:
    print(
        f"{plural(len(space.knobs), 'option')} of {asked.backend} with "
        f"{plural(space.values, 'value')} to try, {asked.minutes:g} minutes",
        flush=True,
    )


def _tell(what: str, number: int, attempt: Attempt) -> None:
    """A line for each run as it ends: searches are long, and their output is often a file."""
    rate = f", {attempt.samples_per_s:,.0f} samples/s" if attempt.samples_per_s else ""
    why = f": {attempt.cause}" if attempt.cause else ""
    again = f", round {number + 1}" if number else ""
    print(f"{what}{again}: {attempt.status}{rate}{why}", flush=True)


def _print(tuned: Tuned, asked: Asked) -> None:
    from headrace.tuning.search.reason import HEADS, cells, reason

    found = tuned.found
    ladder = [cells(step) for step in found.steps if step.stage == "ladder"]
    if ladder:
        print()
        print_table(HEADS, ladder)
    combined = [t for step in found.steps if step.stage == "sampler" for t in step.tried]
    if combined:
        best = max(t.contrast.ratio or 0.0 for t in combined)
        kept = sum(t.kept for t in combined)
        print(
            f"\n{plural(len(combined), 'combination')} by {found.sampler}: {kept} kept, the "
            f"fastest at {best:.2f} of the best so far"
        )
    if tuned.fixed:
        print(f"\nleft as given: {', '.join(tuned.fixed)}")
    print(f"\n{reason(found, asked)}")
    print(f"\n  {asked.command(found.winner)}")
    before = found.runs - tuned.made
    known = f", {before} known from before" if before else ""
    print(
        f"\n{plural(tuned.made, 'run')} made{known}; tuned.yaml, log.md, result.json and the runs "
        f"are in {tuned.folder}"
    )
