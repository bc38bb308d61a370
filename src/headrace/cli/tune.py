"""`headrace tune`: the fastest options of a backend on this machine, and why."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.output import (
    add_json_option,
    add_mixture_arguments,
    plural,
    print_resume_hint,
    print_table,
    run_line,
)
from headrace.cli.study import print_attempt

if TYPE_CHECKING:
    from headrace.tuning.search import Space
    from headrace.tuning.tune import Tuned

HELP = "search a backend's options under a memory floor and a time budget; the winner and why"
DESCRIPTION = """\
Searches the options of a backend: first one at a time, then combinations that Optuna proposes, in
rounds that each have a run of the defaults. At the end the best run against the defaults again, in
turns; only that is reported as a gain. What is delivered stays the same: shuffling, samples and
order are left alone. headrace itself should need no tuning; without --backend this checks that.

  headrace tune oxe29 root=/data/oxe --backend tfdata
  headrace tune mine.yaml --backend torch --minutes 5 --seconds 4 torch.workers=8
  headrace tune oxe29 root=/data/oxe

Options given as KEY=VALUE stay as given. Runs that fail are notes, not the end. Ctrl-C keeps the
best so far; the same command continues. Needs Optuna: pip install 'headrace[tune]'.
Results: OUT/tuned.yaml, log.md, result.json, runs/.
"""

_COMBINATIONS = 5  # that are printed; log.md has all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_mixture_arguments(parser)
    parser.add_argument("--backend", default="headrace", help="what to tune (default: headrace)")
    parser.add_argument(
        "--minutes", type=float, default=15.0, help="for the whole search (default: 15)"
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
        help="also try options that shuffle better or worse, such as shuffle buffers",
    )
    parser.add_argument("--out", type=Path, help="folder (default: tunes/MIXTURE_BACKEND)")
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.config.documents import is_inline
    from headrace.tuning.study.document import Entry, Study
    from headrace.tuning.study.trial import Guard
    from headrace.tuning.tune import tune

    study = Study(
        mixture=args.mixture,
        overrides=tuple(args.overrides),
        backend=args.backend,
        seconds=args.seconds,
        warmup=args.warmup,
        guard=Guard(min_available=args.min_available),
        runs=(Entry(label="defaults"),),
    )
    stem = "inline" if is_inline(args.mixture) else Path(args.mixture).stem
    folder = args.out or Path("tunes") / f"{stem}_{args.backend}"
    quiet = args.json.on_stdout

    def announce(space: Space) -> None:
        options, values = plural(len(space.knobs), "option"), plural(len(space.singles()), "value")
        print(
            f"{options} of {args.backend} with {values} to try, {args.minutes:g} minutes",
            flush=True,
        )

    with run_line(quiet=quiet, step=False) as watch:
        tuned = tune(
            study,
            folder,
            minutes=args.minutes,
            reorder=args.reorder,
            watch=watch,
            tell=(lambda *_: None) if quiet else print_attempt,
            begun=(lambda _: None) if quiet else announce,
        )
    args.json.write(json.loads((folder / "result.json").read_text()))
    if not quiet:
        _print(tuned)
    if tuned.found.ended == "interrupted":
        print_resume_hint()
        return 130
    return 1 if tuned.found.ended == "nothing runs" else 0


def _print(tuned: Tuned) -> None:
    from headrace.tuning.tune import combination_rows, option_rows

    if options := option_rows(tuned):
        print()
        print_table(("option", "speed of each value (the defaults: 1)"), options)
    if combinations := combination_rows(tuned):
        print(f"\nThe best of {plural(len(combinations), 'combination')}:")
        for changed, speed in combinations[:_COMBINATIONS]:
            print(f"  {speed}  {changed}")
    if tuned.space.fixed:
        print(f"\nLeft as given: {', '.join(tuned.space.fixed)}")
    print(f"\n{tuned.words}\n\n  {tuned.command}\n")
    before = tuned.found.runs - tuned.made
    remembered = f", {before} remembered" if before > 0 else ""
    print(
        f"{plural(tuned.made, 'run')} made{remembered}; tuned.yaml, log.md, result.json and the "
        f"runs are in {tuned.folder}"
    )
