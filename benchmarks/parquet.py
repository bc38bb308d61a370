"""Parquet rows to batches of tokens: `python benchmarks/parquet.py`, everything in one run.

Makes network measurements (`headrace synth --preset network`) in a temporary folder and measures
the recipe's loader against (a) the common design, a dict for every row, an LRU of files and Grain's
threads, (b) Grain's own Parquet reader with a shuffle buffer, and (c) the limit: tokenizing rows
that are prepared in memory, in a tight loop on all CPUs. Each runs in a fresh process, in turns
of one round each; a figure is the median of the rounds, with its spread. Filling the store, which
happens once, is reported apart. What is read is brought into the page cache before.

    python benchmarks/parquet.py --rows 425000 --out benchmarks/results     # 1.8 GB, 10 GB of disk
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

from headrace.measure.machine import MemoryWatch, machine_facts, tree_cpu_seconds
from headrace.recipes.network import LENGTH
from headrace.testing import synthesize_network
from parquet_pipelines import PIPELINES, columns_folder
from reporting import data_folder, spread

#: What the recipe is held to: name, the two sides, and the least ratio.
TARGETS = [
    ("against (a)", "exact", "rows", 5.0),
    ("against (a), all files in memory", "exact", "rows_eager", 5.0),
    ("against (b)", "exact", "grain_reader", None),
    ("of the limit (c)", "exact", "limit", 0.9),
    ("of the limit (c) over the same windows", "exact", "limit_hot", None),
    ("local shuffle, of the limit (c)", "local", "limit", None),
]
MOST_MEMORY, MOST_FIRST = 1e9, 2.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=25_000, help="a file; 425000 are 1.8 GB")
    parser.add_argument("--row-group", type=int, help="rows a row group (default: a file is one)")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=5, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help=f"some of {', '.join(PIPELINES)}")
    parser.add_argument("--keep", metavar="DIR", help="put the data here and keep them")
    parser.add_argument("--out", metavar="DIR", help="write JSON and a table there")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(PIPELINES)
    if unknown := sorted(set(names) - set(PIPELINES)):
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(PIPELINES)}")
    with data_folder(args.keep) as root:
        figures = run(root, names, args)
    text = table(figures)
    print(text)
    if args.out:
        out = Path(args.out)
        out.mkdir(parents=True, exist_ok=True)
        name = f"parquet_{date.today().isoformat()}"
        (out / f"{name}.json").write_text(json.dumps(figures, indent=2) + "\n")
        (out / f"{name}.md").write_text(text + "\n")


def run(root: Path, names: list[str], args: argparse.Namespace) -> dict[str, Any]:
    data = root / "data"
    if not data.exists():
        options = {} if args.row_group is None else {"row_group": args.row_group}
        synthesize_network(data, rows=args.rows, only=["train"], **options)
    train = data / "train"
    files = sorted(train.glob("*.parquet"))
    # Always filled again: how long that takes is one of the figures.
    shutil.rmtree(root / "cache", ignore_errors=True)
    environment = {**os.environ, "HEADRACE_CACHE": str(root / "cache")}
    say("filling the store")
    store = child("fill", train, environment)
    store["bytes"] = sum(f.stat().st_size for f in (root / "cache").rglob("*") if f.is_file())
    if any(name.startswith("limit") for name in names):
        child("columns", train, environment)
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(args.rounds):
        for name in names:
            wanted = ["--batch", str(args.batch), "--seconds", str(args.seconds)]
            bring_to_memory(what_it_reads(name, root))
            found = child(name, train, environment, *wanted)
            rounds[name].append(found)
            say(f"round {number + 1}, {name}: {found['windows_per_s']:,.0f} windows/s")
    return {
        "machine": machine_facts(root),
        "load": os.getloadavg(),
        "data": {
            "files": len(files),
            "bytes": sum(file.stat().st_size for file in files),
            "rows": store["rows"],
            "row_group": args.row_group,
        },
        "batch": args.batch,
        "seconds": args.seconds,
        "store": store,
        "rounds": rounds,
    }


def what_it_reads(name: str, root: Path) -> Path:
    """Prepared columns, Parquet files or the store."""
    if name.startswith("limit"):
        return columns_folder(root / "data" / "train")
    from_files = ("rows", "rows_eager", "grain_reader", "local_memory")
    return root / "data" / "train" if name in from_files else root / "cache"


def bring_to_memory(folder: Path) -> None:
    """Files may have left the page cache while another one used all memory."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            with file.open("rb") as opened:
                while opened.read(1 << 24):
                    pass


def child(name: str, data: Path, environment: dict[str, str], *wanted: str) -> dict[str, Any]:
    """One of them in a process of its own, with the memory of all its processes watched."""
    command = [
        sys.executable,
        str(Path(__file__).with_name("parquet_pipelines.py")),
        name,
        str(data),
    ]
    with tempfile.TemporaryFile("w+") as said:
        started = time.perf_counter()
        process = subprocess.Popen(
            [*command, *wanted], env=environment, stdout=subprocess.PIPE, stderr=said, text=True
        )
        watch, peak, cpu = MemoryWatch(process.pid), 0, 0.0
        while process.poll() is None:
            peak = max(peak, watch.now().anonymous)
            cpu = max(cpu, tree_cpu_seconds(process.pid))
            time.sleep(0.05)
        assert process.stdout is not None
        output = process.stdout.read()
        if process.returncode:
            said.seek(0)
            raise SystemExit(f"{name} failed:\n{said.read()[-3000:]}")
    figures = json.loads(output.splitlines()[-1])
    passed = time.perf_counter() - started
    return {**figures, "peak_anonymous_bytes": peak, "whole_s": passed, "cpus": cpu / passed}


# -- the table -----------------------------------------------------------------------------------


def table(figures: dict[str, Any]) -> str:
    machine, data, store = figures["machine"], figures["data"], figures["store"]
    rounds: dict[str, list[dict[str, Any]]] = figures["rounds"]
    count = max(map(len, rounds.values()))
    lines = [
        "# Parquet rows to tokens",
        "",
        f"{machine['cpu']}, {machine['cores_allowed']} of {machine['cores']} CPUs, "
        f"load {figures['load'][0]:.1f} at the end; Python {machine['python']}, "
        + ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
        + ".",
        "",
        f"{data['files']} files, {data['bytes'] / 1e6:,.0f} MB, {data['rows']:,} rows; batches of "
        f"{figures['batch']} windows of 64 rows; {figures['seconds']:g} s in each of {count} "
        "rounds, in turns; medians (least to most). Memory is the peak of anonymous and shared "
        "memory of all processes of one.",
        "",
        f"Filling the store, once: {store['seconds']:.1f} s, {store['bytes'] / 1e6:,.0f} MB on "
        f"disk, {store['peak_anonymous_bytes'] / 1e6:,.0f} MB of memory. It is not in the figures "
        "below.",
        "",
        "| | windows/s | tokens/s | first batch, s | memory, MB |",
        "|---|---|---|---|---|",
    ]
    for name, found in rounds.items():
        first = [one["first_batch_s"] for one in found if "first_batch_s" in one]
        rates = [one["windows_per_s"] for one in found]
        lines.append(
            f"| {PIPELINES[name][0]} | {spread(rates)} "
            f"| {statistics.median(rates) * LENGTH:,.0f} "
            f"| {spread(first, '{:.2f}') if first else ''} "
            f"| {max(one['peak_anonymous_bytes'] for one in found) / 1e6:,.0f} |"
        )
    lines += ["", "| headrace | ratio in each round | target | |", "|---|---|---|---|"]
    lines += [
        ratio_line(rounds, title, one, other, least)
        for title, one, other, least in TARGETS
        if one in rounds and other in rounds
    ]
    if "exact" in rounds:
        memory = max(one["peak_anonymous_bytes"] for one in rounds["exact"])
        first_batch = max(one["first_batch_s"] for one in rounds["exact"])
        lines += [
            f"| memory | {memory / 1e9:.2f} GB | <= 1 GB | {met(memory <= MOST_MEMORY)} |",
            f"| first batch | {first_batch:.2f} s | <= 2 s | {met(first_batch <= MOST_FIRST)} |",
        ]
    return "\n".join(lines)


def ratio_line(
    rounds: dict[str, list[dict[str, Any]]], title: str, one: str, other: str, least: float | None
) -> str:
    pairs = zip(rounds[one], rounds[other], strict=True)
    ratios = [a["windows_per_s"] / b["windows_per_s"] for a, b in pairs]
    if least is None:
        return f"| {title} | {spread(ratios, '{:.2f}')} | | |"
    good = met(statistics.median(ratios) >= least)
    return f"| {title} | {spread(ratios, '{:.2f}')} | >= {least:g} | {good} |"


def met(yes: bool) -> str:
    return "met" if yes else "missed"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
