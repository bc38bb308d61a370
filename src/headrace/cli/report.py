"""`headrace report`: what runs did, in pictures and in numbers."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.output import add_json_option, one_line, print_table

if TYPE_CHECKING:
    from headrace.measure.results import Run

HELP = "plots and numbers of a run, or of several compared in one page"
DESCRIPTION = """\
Rebuild the report of a run, or compare several in one page that works offline in a browser.

One RUN, a folder that `headrace bench` or a training run has written: plots/*.svg,
mixture_over_time.svg, mixture_windows_every_stride.svg, mixture_summary.txt and report.html are
written into it. Several: one page, by default comparison.html in the current folder. The folder of
a comparison stands for the runs in it. What a killed run has left is shown; what is missing or
damaged is named, and the exit code is 1. Needs the extra: pip install 'headrace[plots]'.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("run_folder", metavar="RUN", nargs="+", type=Path)
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="where to write the page of several runs (default: comparison.html), or one more "
        "copy of the page of one",
    )
    add_json_option(parser, "the figures")


def run(args: argparse.Namespace) -> int:
    """Write the report; 1 if something in the runs could not be read."""
    from headrace.measure.report import write_comparison, write_run_report
    from headrace.measure.report.comparison import read_runs
    from headrace.measure.report.tables import (
        COLUMNS,
        summary_cells,
        summary_columns,
        terminal_tables,
    )
    from headrace.measure.verdict import comparison_verdict

    folders: list[Path] = args.run_folder
    if len(folders) == 1:
        path = write_run_report(folders[0])
        if args.out:
            path = write_comparison(folders, args.out)
    else:
        path = write_comparison(folders, args.out or Path("comparison.html"))
    runs, ranges, failures = read_runs(folders)
    verdict = comparison_verdict(runs, ranges) if len(runs) > 1 else ""
    args.json.write(
        {
            "page": str(path),
            "verdict": verdict or None,
            "runs": [_as_json(run) for run in runs],
            "failures": [str(error) for error in failures],
        }
    )
    if not args.json.on_stdout:
        cells = [summary_cells(run) for run in runs]
        figures = summary_columns(runs)[1:-1]
        heads = [COLUMNS[0], *(f">{COLUMNS[n]}" for n in figures)]
        print_table(heads, ([row[0], *(row[n] for n in figures)] for row in cells))
        print()
        for row in cells:
            print(f"{one_line(row[0])}: {one_line(row[-1])}")
        for table in terminal_tables(runs):
            print(f"\n{table.text()}", end="")
        print()
        print(f"{one_line(verdict)}\n{path}" if verdict else path)
    for run in runs:
        for problem in run.problems:
            print(f"headrace report: {one_line(run.label)}: {problem}", file=sys.stderr)
    for error in failures:
        print(f"headrace report: {error}", file=sys.stderr)
    return 1 if failures or any(run.problems for run in runs) else 0


def _as_json(run: Run) -> dict[str, Any]:
    from headrace.measure.report.slow import by_dominant, slowest, switch_stay
    from headrace.measure.verdict import run_verdict

    changes = switch_stay(run.batches)
    return {
        "label": run.label,
        "path": str(run.folder),
        "backend": run.backend,
        "status": run.status,
        "cause": run.cause,
        "verdict": run_verdict(run),
        "measured_batches": len(run.batches.measured()),
        "figures": dict(run.numbers),
        "mixture": {
            name: {"asked": share.requested, "served": share.actual}
            for name, share in run.mixture.items()
        },
        "batch_time": {
            "by_dominant_dataset": [asdict(group) for group in by_dominant(run.batches)],
            **asdict(changes),
            "switch_stay_ratio": changes.ratio,
            "slowest": [asdict(batch) for batch in slowest(run.batches)],
        },
        "problems": list(run.problems),
    }
