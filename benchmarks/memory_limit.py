"""Training with validation inside a memory limit: which limits does a backend survive?

    python -m benchmarks.memory_limit DATA --out memory_limit.json

DATA holds the 29 datasets (`headrace synth DATA`). Each run is `headrace bench` with validation in
the middle, in a control group of its own whose limit the kernel keeps (see
`tests/memory_group.py`; it needs root). What the kernel said and what the benchmark printed
are kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.memory_group import memory_group

LIMITS = (300, 400, 600, 1000, 1500, 2000, 3000, 4000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("memory_limit.json"))
    parser.add_argument("--backends", nargs="*", default=["headrace", "tfdata"])
    parser.add_argument("--limits", nargs="*", type=int, default=LIMITS, metavar="MB")
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    found = []
    for backend in args.backends:
        survived = 0
        for limit in args.limits:
            row = run(args, backend, limit)
            found.append(row)
            args.out.write_text(json.dumps(found, indent=1) + "\n")
            print(json.dumps({k: v for k, v in row.items() if k != "printed"}), flush=True)
            survived += row["status"] == "complete"
            if survived == 3:
                break  # it has room enough by now
    print(table(found))


def run(args: argparse.Namespace, backend: str, limit: int) -> dict[str, Any]:
    """One run inside a limit of so many MB."""
    bench = [
        *("bench", "oxe29", f"root={args.data}", "defaults.split=train[:90%]"),
        *("defaults.val_split=train[90%:]", f"loader.batch_size={args.batch}"),
        *("--backend", backend, "--steps", str(args.steps), "--no-limit"),
        *("--validate-every", "50", "--validate-batches", "4", "--timeout", "240"),
    ]
    with tempfile.TemporaryDirectory() as folder, memory_group(limit * 10**6) as group:
        result = Path(folder) / "result.json"
        done = subprocess.run(
            group.command(sys.executable, "-m", "headrace", *bench, "--json", str(result),
                          "--runs", folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        figures = json.loads(result.read_text()) if result.exists() else {}
        shown = ["headrace", *bench]
        shown[3] = "root=DATA"
        return {
            "backend": backend,
            "limit_mb": limit,
            "batch": args.batch,
            "status": figures.get("status") or f"exit code {done.returncode}",
            "cause": figures.get("cause"),
            "batches": figures.get("batches"),
            "samples_per_s": figures.get("samples_per_s"),
            "max_s": figures.get("max_s"),
            "peak_anon_mb": figures.get("peak_anon_mb"),
            "kernel_kills": group.kills,
            "command": " ".join(shown),
            "printed": done.stdout.replace(folder, "RUNS").replace(str(args.data), "DATA"),
        }


def table(found: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = ["| limit | backend | ended | samples/s | peak anonymous | killed by the kernel |"]
    lines += ["|---:|---|---|---:|---:|---:|"]
    for row in found:
        rate, peak = row["samples_per_s"], row["peak_anon_mb"]
        complete = row["status"] == "complete"
        lines.append(
            f"| {row['limit_mb']:,} MB | {row['backend']} | {row['status']} | "
            f"{f'{rate:,.0f}' if rate and complete else '-'} | "
            f"{f'{peak:,.0f} MB' if peak else '-'} | {row['kernel_kills']} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
