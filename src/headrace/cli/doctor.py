"""`headrace doctor`: what limits a mixture on this machine, or a run."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.output import add_json_option, add_mixture_arguments, status_line
from headrace.errors import DataError, UsageError

if TYPE_CHECKING:
    from headrace.measure.evidence import Evidence

HELP = "say what limits a mixture on this machine, or a run, and what to change"
DESCRIPTION = """\
Examines data and machine, or an archived run, and gives one verdict in plain words with the
evidence and the change to make: compute-bound, decode-bound, storage-bound, copy-bound,
memory-bound prefetch, or starved by the Python loop.

  headrace doctor oxe29 root=/data/oxe                what the loader can feed, and what limits it
  headrace doctor oxe29 root=/data/oxe --step-ms 80   whether a step of 80 ms would wait
  headrace doctor --run runs/2026-11-15_12-00-00_laq  a benchmark, or a loop under `hr.Doctor`

MIXTURE, --only and overrides are those of `headrace bench`. Exit code: 0 healthy, 1 not healthy, 2
no verdict.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_mixture_arguments(parser, optional=True)
    parser.add_argument("--run", dest="run_folder", metavar="RUN", type=Path, help="a run's folder")
    parser.add_argument("--step-ms", type=float, default=0.0, metavar="MS", help="simulate a step")
    parser.add_argument("--seconds", type=float, default=5.0, help="of the loader (default: 5)")
    parser.add_argument("--flops-per-step", type=float, metavar="N", help="of the model, for MFU")
    parser.add_argument("--peak-flops", type=float, metavar="N", help="of the device, a second")
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.measure.verdict import give_verdict, verdict_text

    if (args.mixture is None) == (args.run_folder is None):
        both = "both MIXTURE and --run" if args.mixture else "neither MIXTURE nor --run"
        raise UsageError(f"{both} given", remedy="Give one of them")
    evidence = _evidence(args)
    evidence = replace(
        evidence,
        flops_per_step=args.flops_per_step or evidence.flops_per_step,
        peak_flops=args.peak_flops or evidence.peak_flops,
    )
    verdict = give_verdict(evidence)
    found = {"verdict": verdict.to_dict(), "evidence": evidence.to_dict()}
    args.json.write(found)
    if not args.json.on_stdout:
        print(verdict_text(verdict, evidence))
    if verdict.kind == "unknown":
        return 2
    return 0 if verdict.healthy else 1


def _evidence(args: argparse.Namespace) -> Evidence:
    if args.run_folder is not None:
        from headrace.measure.evidence import run_evidence
        from headrace.measure.results import read_run

        run = read_run(args.run_folder)
        if "comparison" in run.stated:
            raise DataError(
                f"{str(args.run_folder)!r} is a comparison of several runs",
                remedy="Give the folder of one of them, which lies below it",
            )
        return run_evidence(run)
    from headrace.measure.job import jobs_of
    from headrace.tuning.examine import examine

    job = jobs_of(args.mixture, args.overrides, ["headrace"])["headrace"]
    with status_line() as show:
        return examine(
            job,
            step_ms=args.step_ms,
            seconds=args.seconds,
            watch=lambda text: show(f"examining: {text}"),
        )
