"""Are the loader's defaults the best there is? Each changed by itself, in rounds, against them.

    python benchmarks/defaults.py DATA --out defaults.json

DATA holds the 29 datasets (`headrace synth DATA`). Every run is a fresh process; in a round each
setting runs once, in an order that rotates, and is compared with the defaults' run of that round.
What has no option because nobody should need one (prefetch, samples a task) is changed inside the
package for this purpose alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CPUS = len(os.sched_getaffinity(0))
INSIDE = {
    "prefetch": "headrace.loader.sizes.PREFETCH",
    "deepest": "headrace.loader.sizes.DEEPEST",
    "task_samples": "headrace.loader.plan._TASK_SAMPLES",
    "fewest_samples": "headrace.loader.plan._FEWEST_SAMPLES",
    "task_bytes": "headrace.loader.plan._TASK_BYTES",
}

#: Setting by setting: what it is changed to. Names in INSIDE are constants, the rest options.
SWEEP: dict[str, list[dict[str, Any]]] = {
    "workers": [{"workers": n} for n in sorted({1, max(1, CPUS // 2), CPUS + 1, 2 * CPUS})],
    "prefetch": [{"prefetch": n} for n in (1, 2, 8, 16)],
    "grouping": [
        {"task_samples": n, "fewest_samples": min(8, n), "task_bytes": n << 16}
        for n in (2, 4, 8, 32, 64)
    ],
    "memory": [{"memory": size} for size in ("0.25x", "0.5x", "2x")],
    "no_processes": [{"workers": 0}],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("defaults.json"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--step", type=float, default=0.0, metavar="MS", help="simulated, uneven")
    parser.add_argument("--only", nargs="*", default=list(SWEEP))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args, json.loads(args.one))))
        return
    settings = [{}, *(change for name in args.only for change in SWEEP[name])]
    found: dict[str, list[dict[str, float]]] = {json.dumps(change): [] for change in settings}
    for number in range(args.rounds):
        shift = number * 5 % len(settings)
        for change in settings[shift:] + settings[:shift]:
            key = json.dumps(change)
            done = subprocess.run(
                [sys.executable, __file__, *sys.argv[1:], "--one", key],
                capture_output=True,
                text=True,
            )
            if done.returncode:
                sys.exit(f"{key}: {done.stderr}")
            found[key].append(json.loads(done.stdout))
            print(number + 1, key, found[key][-1], flush=True)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


def measure(args: argparse.Namespace, change: dict[str, Any]) -> dict[str, float]:
    """One run: samples a second after three seconds, share of the time spent waiting, memory."""
    import importlib

    import headrace as hr
    from headrace.measure.machine import tree_memory

    options: dict[str, Any] = {}
    for name, value in change.items():
        if name in INSIDE:
            module, _, constant = INSIDE[name].rpartition(".")
            setattr(importlib.import_module(module), constant, value)
        else:
            options[name] = value
    mixture = hr.Mixture.load("oxe29", [f"root={args.data}", "defaults.split=train"])
    settings = {"batch_size": args.batch, "image_size": 256, "keep_free": 0}
    if "memory" in options:  # in terms of what the defaults may take; nothing is started for it
        with hr.Loader(mixture, **settings) as loader:
            limit = loader.statistics().engine.budget.limit
        options["memory"] = int(float(options["memory"].rstrip("x")) * limit)
    with hr.Loader(mixture, **settings, **options) as loader:
        begun = counted_from = time.perf_counter()
        samples, steps, waited = 0, 0, 0.0
        warm = False
        while (now := time.perf_counter()) - begun < 3 + args.seconds:
            if not warm and now - begun > 3:
                warm, counted_from, samples, waited = True, now, 0, 0.0
            batch = next(loader)
            waited += time.perf_counter() - now
            samples += len(batch)
            del batch
            steps += 1
            if args.step:  # seven short steps, then a long one: the mean is args.step
                time.sleep(args.step / 1000 * (0.5 if steps % 8 else 4.5))
        seconds = time.perf_counter() - counted_from
        memory = tree_memory(os.getpid()).anonymous
    return {
        "samples_per_s": round(samples / seconds, 1),
        "waited": round(waited / seconds, 4),
        "memory_mb": round(memory / 1e6, 1),
    }


def table(found: dict[str, list[dict[str, float]]]) -> str:
    """Markdown: median of the rounds, and of the ratios to the defaults in the same round."""
    base = [run["samples_per_s"] for run in found["{}"]]
    lines = ["| changed | samples/s | of the defaults | waited | memory |"]
    lines += ["|---|---:|---:|---:|---:|"]
    best = 1.0
    for key, runs in found.items():
        rates = [run["samples_per_s"] for run in runs]
        ratios = [rate / default for rate, default in zip(rates, base, strict=True)]
        best = max(best, statistics.median(ratios))
        change = ", ".join(f"{k} {v}" for k, v in json.loads(key).items()) or "nothing"
        lines.append(
            f"| {change} | {statistics.median(rates):,.0f} ({min(rates):,.0f} to "
            f"{max(rates):,.0f}) | {statistics.median(ratios):.3f} ({min(ratios):.2f} to "
            f"{max(ratios):.2f}) | {statistics.median(r['waited'] for r in runs):.1%} | "
            f"{statistics.median(r['memory_mb'] for r in runs):,.0f} MB |"
        )
    lines += ["", f"Best found: {best:.3f} of the defaults."]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
