"""`headrace study`: many guarded runs, one table, one decision."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.output import (
    add_json_option,
    add_only_option,
    plural,
    print_resume_hint,
    print_table,
    run_line,
)
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.tuning.study import Finished, Study
    from headrace.tuning.study.trial import Attempt

HELP = "run a ladder, grid or list of configurations under a memory guard; a table and a decision"
DESCRIPTION = """\
Runs the configurations of a study one after the other, each in a process group of its own, in
rounds that take turns. A run that goes below the memory floor, stalls or takes too long is stopped,
and is a row of the table like any other. The same command resumes an interrupted study without
repeating what was finished.

  headrace study --list
  headrace study param_ladder root=/data/oxe
  headrace study param_ladder root=/data/oxe --only bridge,rt1
  headrace study cpu_sweep --mixture mine.yaml loader.batch_size=128 --seconds 20
  headrace study mine_study.yaml --out studies/tuesday
  headrace study param_ladder root=/data/oxe --add '{label: big, change: loader.batch_size=512}'

Results: STUDY/results.csv, results.json, log.md, plots/ and the runs themselves below runs/.
"""

#: Statuses of rows that do not make the study a failure.
_FINE = ("complete", "skipped", "not installed")
_HIDDEN = (">batches", ">p90", ">wall")  # columns that log.md has and a terminal has no room for


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", metavar="STUDY", nargs="?", help="a YAML file or a packaged study")
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="for every run")
    parser.add_argument("--list", action="store_true", help="list the packaged studies")
    parser.add_argument(
        "--mixture", help="instead of the study's: a YAML file, a packaged one, or YAML"
    )
    add_only_option(parser)
    parser.add_argument("--out", type=Path, help="the study's folder (default: studies/NAME)")
    parser.add_argument(
        "--row",
        action="append",
        default=[],
        metavar="LABEL",
        help="run this row, and the baseline; can be repeated",
    )
    parser.add_argument(
        "--add",
        action="append",
        default=[],
        metavar="ROW",
        help="one more row, as YAML; can be repeated",
    )
    parser.add_argument("--again", action="store_true", help="forget what was finished before")
    long = parser.add_mutually_exclusive_group()
    long.add_argument("--seconds", type=float, help="measured time of a run, instead of batches")
    long.add_argument("--steps", type=int, help="measured batches of a run, without a time limit")
    parser.add_argument("--repeats", type=int, help="rounds")
    parser.add_argument("--floor", metavar="SIZE", help="memory that must stay free, such as 5GiB")
    parser.add_argument("--timeout", type=float, help="seconds a run may take")
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.tuning.study import run_study

    if args.list:
        return _list()
    study = _study(args)
    quiet = args.json.on_stdout
    folder = args.out or Path("studies") / study.name
    with run_line(quiet=quiet, step=bool(study.compute_ms)) as watch:
        found = run_study(
            study,
            folder,
            only=args.row,
            again=args.again,
            watch=watch,
            tell=(lambda *_: None) if quiet else print_attempt,
        )
    args.json.write(json.loads((folder / "results.json").read_text()))
    if not quiet:
        _print(found)
    if found.interrupted:
        print_resume_hint()
        return 130
    return 0 if all(row.status in _FINE for row in found.rows) else 1


def print_attempt(title: str, attempt: Attempt) -> None:
    """A line for each run as it ends: studies and searches are long, their output often a file."""
    rate = f", {attempt.samples_per_s:,.0f} samples/s" if attempt.samples_per_s else ""
    why = f": {attempt.cause}" if attempt.cause else ""
    print(f"{title}: {attempt.status}{rate}{why}", flush=True)


def _list() -> int:
    from headrace.tuning.study import packaged_studies, read_study

    for name, file in packaged_studies().items():
        study = read_study(file)
        print(f"{name:<20} {study.about} ({len(study.rows())} rows, {study.repeats} rounds)")
    return 0


def _study(args: argparse.Namespace) -> Study:
    """The study with what the command line says instead."""
    from headrace.tuning.study import read_study

    if args.study is None:
        raise UsageError("no study is given", remedy="Give a file or a name of `--list`")
    if "=" in args.study and not Path(args.study).exists():
        raise UsageError(
            f"{args.study!r} is an override, not a study", remedy="Give a file or a name first"
        )
    study = read_study(args.study, args.overrides, args.add)
    if args.seconds is not None or args.steps is not None:
        study = replace(study, seconds=args.seconds, steps=args.steps)
    given = {"repeats": args.repeats, "mixture": args.mixture}
    limits = {"min_available": args.floor, "timeout_s": args.timeout}
    guard = replace(study.guard, **{k: v for k, v in limits.items() if v is not None})
    return replace(study, guard=guard, **{k: v for k, v in given.items() if v is not None})


def _print(found: Finished) -> None:
    from headrace.tuning.study.results import HEADS, base_of, cells

    shown = [number for number, head in enumerate(HEADS) if head not in _HIDDEN]
    table = [cells(row, base_of(row, found.rows)) for row in found.rows]
    print()
    print_table([HEADS[n] for n in shown], [[row[n] for n in shown] for row in table])
    notes = [f"{row.label}: {'; '.join(row.notes)}" for row in found.rows if row.notes]
    if notes:
        print("", *notes, sep="\n")
    print(f"\n{found.decision.words}")
    made = f"{plural(found.made, 'run')} made now" if found.made else "nothing left to run"
    plots = "" if found.no_plots else ", plots"
    print(f"\n{made}; log, tables{plots} and runs are in {found.folder}")
    if found.no_plots:
        print(f"There are no plots: {found.no_plots}")
