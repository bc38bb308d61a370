"""Stream a mixture for a few seconds and say what came: `python docs/stream.py ROOT [SECONDS]`."""

import os
import sys
import time
from collections import Counter

import headrace as hr
from headrace.measure.limit import decode_limit
from headrace.measure.machine import tree_memory

root, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 5.0
mixture = hr.Mixture.load("oxe29", [f"root={root}"])

started = time.perf_counter()
with hr.Loader(mixture, batch_size=64, image_size=256, seed=0) as loader:
    batch = next(loader)
    print(f"first batch      {time.perf_counter() - started:.2f} s, {batch}")

    limit = decode_limit(loader, seconds=seconds)
    counts: Counter[str] = Counter()
    started = time.perf_counter()
    while time.perf_counter() - started < 2:  # worker processes take over in the first moments
        next(loader)
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        batch = next(loader)
        counts.update(batch.names[number] for number in batch.dataset)
    rate = sum(counts.values()) / (time.perf_counter() - started)
    print(f"throughput       {rate:,.0f} samples/s, globally shuffled over 29 datasets")
    print(
        f"decode limit     {limit.samples_per_s:,.0f} samples/s in {limit.processes} tight loops: "
        f"the loader reaches {rate / limit.samples_per_s:.0%}"
    )

    started = time.perf_counter()
    next(loader.validation())
    print(f"validation       first batch after {time.perf_counter() - started:.2f} s")
    figures = loader.statistics()
    budget = figures.engine.budget
    print(
        f"memory           {tree_memory(os.getpid()).anonymous / 1e6:.0f} MB anonymous in "
        f"{1 + len(figures.engine.processes)} processes; {budget.peak / 2**20:.0f} MiB held of a "
        f"budget of {budget.limit / 2**20:.0f}"
    )
    total = sum(counts.values())
    print(f"shares           requested and actual over {total:,} samples:")
    for name, share in list(figures.shares.items())[:5]:
        print(f"  {name:<22} {share:7.3%} {counts[name] / total:7.3%}")
    worst = max(abs(counts[name] / total - share) for name, share in figures.shares.items())
    print(f"  ... {len(counts) - 5} more, at most {worst:.2%} apart (exact in every 65,536 draws)")

    state = loader.state_dict()
    print(f"state            {state['draws']:,} draws and seed {state['seed']}: enough to resume")
