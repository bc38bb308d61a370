"""`headrace bench`: the loader alone, or several side by side."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.catalog.manifest import UNCHECKED, some_of
from headrace.cli.output import add_json_option, add_mixture_arguments, print_table, run_line

if TYPE_CHECKING:
    from headrace.measure.bench import Comparison, Watch
    from headrace.measure.job import Job

HELP = "measure a loader: samples/s, stalls, memory, share of the decode limit"
DESCRIPTION = """\
Streams a mixture without a model and says how fast it goes, how much of the decode limit that is
(the same draws, read and decoded in tight loops with nothing else), how long the first batch takes
and how much memory is held. Every run is archived as a folder with a report.

  headrace bench oxe29 root=/data/oxe
  headrace bench mine.yaml loader.batch_size=128 --compute 50
  headrace bench oxe29 root=/data/oxe --only bridge,rt1
  headrace bench '{root: /data/oxe, sources: [{name: bridge, weight: 1}, {name: rt1, weight: 3}]}'
  headrace bench oxe29 root=/data/oxe --versus tfdata,torch
  headrace bench oxe29 root=/data/oxe --backend tfdata tfdata.mixing.strategy=choose
  headrace bench oxe29 root=/data/oxe --limit

Overrides are of the mixture (root, defaults.*, sources.NAME.*), of the loader (loader.batch_size,
loader.image_size, loader.metadata, loader.seed, loader.workers; headrace's alone: loader.memory,
loader.keep_free, loader.on_error), or of a backend's own options (tfdata.*).
"""


_BATCH_TIMES = ("p50", "p90", "p99", "max")
#: Columns of a comparison: head, figure, format. Those that no backend has are left out.
_VERSUS = (
    ("samples/s", "samples_per_s", "{:,.0f}"),
    ("of limit", "limit_ratio", "{:.2f}"),
    ("first batch", "first_batch_s", "{:.2f} s"),
    ("memory", "peak_anon_mb", "{:,.0f} MB"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_mixture_arguments(parser)
    parser.add_argument("--backend", default="headrace", help="what to run (default: headrace)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--versus", metavar="LIST", help="against these, taking turns: a,b,c")
    what.add_argument("--limit", action="store_true", help="only the decode and storage limits")
    what.add_argument(
        "--profile", action="store_true", help="also write a trace, for a browser or TensorBoard"
    )
    long = parser.add_mutually_exclusive_group()
    long.add_argument("--seconds", type=float, help="measured time of a run (default: 20)")
    long.add_argument("--steps", type=int, help="measured batches of a run")
    parser.add_argument("--warmup", type=int, default=8, help="batches before (default: 8)")
    parser.add_argument(
        "--compute", type=float, default=0.0, metavar="MS", help="simulate a training step"
    )
    parser.add_argument(
        "--validate-every", type=int, default=0, metavar="N", help="validate after every N batches"
    )
    parser.add_argument(
        "--validate-batches", type=int, default=4, metavar="M", help="of a validation (default: 4)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="rounds of --versus (default: 3)")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds a run may take")
    parser.add_argument("--no-limit", action="store_true", help="do not measure the limits")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="archive (default: runs)")
    parser.add_argument("--name", help="name of the run's folder")
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.measure.job import BenchSettings, jobs_of

    seconds = args.seconds if args.seconds or args.steps else 20.0
    settings = BenchSettings(
        seconds=None if args.steps else seconds,
        steps=args.steps,
        warmup=args.warmup,
        compute_ms=args.compute,
        timeout_s=args.timeout,
        validate_every=args.validate_every,
        validate_batches=args.validate_batches,
    )
    others = args.versus.split(",") if args.versus else []
    backends = list(dict.fromkeys([args.backend, *others]))
    jobs = jobs_of(args.mixture, args.overrides, backends)
    with run_line(quiet=args.json.on_stdout, step=args.compute > 0) as watch:
        if args.limit:
            return _limits(next(iter(jobs.values())), args, watch)
        if args.versus:
            return _versus(jobs, settings, args, watch)
        return _single(jobs[args.backend], settings, args, watch)


# -- what is printed -----------------------------------------------------------------------------


def _single(job: Job, settings: Any, args: argparse.Namespace, watch: Watch) -> int:
    from headrace.measure.bench import bench
    from headrace.measure.runs import damage_note

    folder, result = bench(
        job,
        args.backend,
        settings,
        runs=args.runs,
        name=args.name,
        limit=not args.no_limit,
        watch=watch,
        profile=args.profile,
    )
    args.json.write(result)
    if not args.json.on_stdout:
        _print_result(folder, result)
        if note := damage_note(folder):
            print(note)
        print(f"\narchived in {folder}")
    return {"complete": 0, "interrupted": 130}.get(result["status"], 1)


def _print_result(folder: Path, result: dict[str, Any]) -> None:
    from headrace.measure.evidence import run_evidence
    from headrace.measure.quantities import megabytes, seconds
    from headrace.measure.results import read_run
    from headrace.measure.verdict import give_verdict, nearer_limit

    if result["status"] != "complete":
        print(f"{result['backend']}: {result['status']}: {result['cause']}")
    if result["samples_per_s"] is None:
        return
    evidence = run_evidence(read_run(folder))
    low, high = result["samples_per_s_spread"] or (None, None)
    spread = f" ({low:,.0f} to {high:,.0f} in fifths of the run)" if low and high else ""
    lines = [
        ("samples/s", f"{result['samples_per_s']:,.0f}{spread}"),
        ("of the decode limit", _share(result)),
        ("first batch", seconds(result["first_batch_s"])),
        ("closing", seconds(result["close_s"]) if result["close_s"] is not None else ""),
        (
            "batch",
            ", ".join(f"{name} {seconds(result[f'{name}_s'])}" for name in _BATCH_TIMES),
        ),
        # Without a step, the consumer always waits.
        ("stall per step", seconds(result["stall_s_per_step"]) if evidence.simulated else ""),
        (
            "memory",
            f"{megabytes(result['peak_anon_mb'])} anonymous at most"
            + (f", budget {megabytes(result['budget_mb'])}" if result["budget_mb"] else ""),
        ),
        ("nearer limit", nearer_limit(evidence) or ""),
        ("verdict", give_verdict(evidence).headline),
    ]
    if result["validations"]:
        start, most = result["validation_start_s"], result["validation_start_max_s"]
        passes = f"{result['validations']} passes"
        lines.append(("validation start", f"{seconds(start)}, at most {seconds(most)}, {passes}"))
    if result["remote_sources"]:
        lines.append(("over the network", ", ".join(result["remote_sources"])))
    if unchecked := result["unchecked_sources"]:
        lines.append(("sources", f"{UNCHECKED}: {some_of(unchecked)}"))
    if result["trace"]:
        lines.append(("trace", f"{folder / result['trace']} (opens in ui.perfetto.dev)"))
    for name, value in lines:
        if value:
            print(f"{name:<20} {value}")


def _share(result: dict[str, Any]) -> str:
    if result["limit_ratio"] is None:
        return ""
    return f"{result['limit_ratio']:.2f} of {result['decode_limit_samples_per_s']:,.0f} samples/s"


def _versus(jobs: dict[str, Job], settings: Any, args: argparse.Namespace, watch: Watch) -> int:
    from headrace.measure.bench import compare
    from headrace.measure.report.comparison import read_runs
    from headrace.measure.results import different_work

    found = compare(
        jobs,
        settings,
        runs=args.runs,
        name=args.name or "versus",
        repeats=args.repeats,
        limit=not args.no_limit,
        watch=watch,
    )
    args.json.write({"comparison": found.rows, "ratios": found.ratios})
    if not args.json.on_stdout:
        columns = [(head, key, pattern) for head, key, pattern in _VERSUS if _any(found, key)]
        rows = []
        for backend, row in found.rows.items():
            figures = [_median(row[key], pattern) for _, key, pattern in columns]
            status = "" if row["status"] == "complete" else str(row["status"])
            rows.append((backend, *figures, row["shuffle"], status))
        print_table(["backend", *(f">{head}" for head, _, _ in columns), "shuffle", ""], rows)
        for backend, row in found.rows.items():
            if row["cause"]:
                print(f"{backend}: {row['cause']}")
        first = next(iter(jobs))
        differ = different_work(read_runs([found.folder])[0])
        if differ:
            print(f"No ratio: the runs did different work. What differs: {', '.join(differ)}.")
        for backend, ratio in () if differ else found.ratios.items():
            rounds = len(ratio["runs"])
            spread = f"{ratio['min']:.2f} to {ratio['max']:.2f} in {rounds} rounds"
            said = "in one round" if rounds == 1 else spread
            print(f"{first} / {backend}: {ratio['median']:.2f} ({said})")
        print(f"\narchived in {found.folder}")
    if found.interrupted:
        return 130
    return 0 if all(row["status"] == "complete" for row in found.rows.values()) else 1


def _any(found: Comparison, key: str) -> bool:
    return any(row[key] is not None for row in found.rows.values())


def _median(values: dict[str, Any] | None, pattern: str) -> str:
    return "-" if values is None else pattern.format(values["median"])


def _limits(job: Job, args: argparse.Namespace, watch: Watch) -> int:
    from headrace.measure.bench import begin, measure_limit
    from headrace.measure.job import BenchSettings

    begun = begin(args.runs, args.name or "limit", job, BenchSettings())
    found, outcome = measure_limit(begun.folder, job, watch)
    if found is None:
        print(f"headrace bench: {outcome.status}: {outcome.cause}", file=sys.stderr)
        return 130 if outcome.status == "interrupted" else 1
    args.json.write(found)
    if not args.json.on_stdout:
        print(
            f"decode limit   {found['decode_limit_samples_per_s']:,.0f} samples/s in "
            f"{found['processes']} processes"
        )
        print(
            f"storage limit  {found['storage_limit_samples_per_s']:,.0f} samples/s, "
            f"{found['storage_limit_bytes_per_s'] / 1e6:,.0f} MB/s as the page cache is now"
        )
        print(f"\narchived in {begun.folder}")
    return 0
