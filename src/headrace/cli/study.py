"""`headrace study`: many guarded runs, one table, one decision."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.output import (
    add_json_option,
    plural,
    print_resume_hint,
    print_table,
    run_line,
)
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.tuning.attempt import Attempt
    from headrace.tuning.study import About, Finished, Study
    from headrace.tuning.trial import Trial

HELP = "run a ladder, grid or list of configurations under a memory guard; a table and a decision"
DESCRIPTION = """\
Runs the configurations of a study one after the other, each in a process group of its own, in
rounds that take turns. A run that comes under the memory floor, stalls or takes too long is
stopped, and is a row of the table like any other. An interrupted study goes on with the same
command, without repeating what was finished.

  headrace study --list
  headrace study param_ladder root=/data/oxe
  headrace study cpu_sweep --mixture mine.yaml loader.batch_size=128 --seconds 20
  headrace study mine_study.yaml --out studies/tuesday
  headrace study param_ladder root=/data/oxe --add '{label: big, change: loader.batch_size=512}'

Results: STUDY/results.csv, results.json, log.md, plots/ and the runs themselves below runs/.
"""

#: Of these nothing went wrong that the study is to blame for.
_FINE = ("pass", "skipped", "not installed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", metavar="STUDY", nargs="?", help="a YAML file or a packaged study")
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="of every run")
    parser.add_argument("--list", action="store_true", help="list the packaged studies")
    parser.add_argument("--mixture", help="instead of the study's: a YAML file or a packaged one")
    parser.add_argument("--out", type=Path, help="the study's folder (default: studies/NAME)")
    parser.add_argument("--only", action="append", metavar="LABEL", help="these rows; repeat it")
    parser.add_argument(
        "--add", action="append", default=[], metavar="ROW", help="one more row, as YAML; repeat it"
    )
    parser.add_argument("--again", action="store_true", help="forget what was finished before")
    parser.add_argument("--seconds", type=float, help="measured time of a run")
    parser.add_argument("--repeats", type=int, help="rounds")
    parser.add_argument("--floor", metavar="SIZE", help="memory that must stay free, as 5GiB")
    parser.add_argument("--timeout", type=float, help="seconds a run may take")
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.jobs import allowed_cpus
    from headrace.tuning.study import About, plan, run_study

    if args.list:
        return _list()
    study = _study(args)
    trials = _chosen(plan(study, args.overrides, cpus=allowed_cpus()), args.only)
    about = About.of(study, args.overrides)
    quiet = args.json.on_stdout
    folder = args.out or Path("studies") / study.name
    step = any(trial.settings.compute_ms for trial in trials)
    with run_line(quiet=quiet, step=step) as watch:
        found = run_study(
            trials,
            folder,
            about,
            guard=study.guard,
            repeats=study.repeats,
            again=args.again,
            watch=watch,
            tell=(lambda *_: None) if quiet else _tell,
        )
    args.json.write(json.loads((folder / "results.json").read_text()))
    if not quiet:
        _print(found, about)
    if found.interrupted:
        print_resume_hint()
        return 130
    return 0 if all(row.status in _FINE for row in found.rows) else 1


def _list() -> int:
    from headrace.tuning.study import packaged_studies, read_study

    rows = []
    for name, file in packaged_studies().items():
        study = read_study(file)
        rows.append((name, str(len(study.entries)), str(study.repeats), study.about))
    width = max(len(row[0]) for row in rows)
    for name, entries, repeats, about in rows:
        print(f"{name:<{width}}  {about} ({entries} rows, {repeats} rounds)")
    return 0


def _study(args: argparse.Namespace) -> Study:
    """The study with what the command line says over it."""
    from headrace.loader.settings import parse_size
    from headrace.tuning.study import read_study

    if args.study is None:
        raise UsageError("no study is given", remedy="Give a file or a name of `--list`")
    if "=" in args.study and not Path(args.study).exists():
        raise UsageError(
            f"{args.study!r} is an override, not a study", remedy="Give a file or a name first"
        )
    study = read_study(args.study, args.add)
    settings, guard = study.settings, study.guard
    if args.seconds is not None:
        settings = replace(settings, seconds=args.seconds, steps=None)
    if args.floor is not None:
        guard = replace(guard, min_available=parse_size(args.floor))
    if args.timeout is not None:
        guard = replace(guard, timeout_s=args.timeout)
    repeats = study.repeats if args.repeats is None else args.repeats
    if repeats < 1:
        raise UsageError(f"repeats is {repeats}", remedy="Give a number from 1 upwards")
    mixture = args.mixture or study.mixture
    return replace(study, settings=settings, guard=guard, repeats=repeats, mixture=mixture)


def _chosen(trials: Sequence[Trial], labels: Sequence[str] | None) -> list[Trial]:
    """The rows asked for, and the baseline, without which there is nothing to compare."""
    from headrace.config.typed import nearest

    names = [trial.label for trial in trials]
    for label in labels or ():
        if label not in names:
            raise UsageError(
                f"the study has no row {label!r}",
                remedy=f"{nearest(label, names)}Rows: {', '.join(names)}.",
            )
    return [t for n, t in enumerate(trials) if not labels or not n or t.label in labels]


# -- what is printed -----------------------------------------------------------------------------


def _tell(trial: Trial, number: int, attempt: Attempt) -> None:
    """A line for each run as it ends: studies are long, and their output is often a file."""
    rate = f", {attempt.samples_per_s:,.0f} samples/s" if attempt.samples_per_s else ""
    why = f": {attempt.cause}" if attempt.cause else ""
    print(f"{trial.label}, round {number + 1}: {attempt.status}{rate}{why}", flush=True)


def _print(found: Finished, about: About) -> None:
    from headrace.tuning.study.table import HEADS, cells

    named = {row.label: row for row in found.rows}
    wide = [n for n, head in enumerate(HEADS) if head not in (">wall", ">p90")]
    rows = []
    for row in found.rows:
        base = named.get(about.base_of(row.label) or "")
        all_cells = cells(row, base)
        rows.append([all_cells[n] for n in wide])
    print()
    print_table([HEADS[n] for n in wide], rows)
    noted = [row for row in found.rows if row.notes]
    if noted:
        print()
    for row in noted:
        print(f"{row.label}: {'; '.join(row.notes)}")
    print(f"\n{found.decision.words}")
    made = f"{plural(found.repeated, 'run')} made now" if found.repeated else "nothing left to run"
    print(f"\n{made}; log, tables, plots and runs are in {found.folder}")
