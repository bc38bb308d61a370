"""What the loader gives, as ratios within one run: `python benchmarks/loader.py`.

Generates the 29 datasets of the reference mixture in a temporary folder (page cache warm) and
measures the loader against the decode limit of the same draws: reading and decoding in a tight
loop in as many processes as the loader has threads, with nothing else. The two sides of a ratio
take turns of a few seconds, so that what else happens on the machine meets both alike; the figure
is the median of the turns, with its spread.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from headrace.engine.machine import allowed_cpus
from headrace.engine.statistics import Counters
from headrace.loader import LoaderOptions
from headrace.loader.plan import SamplePlan
from headrace.loader.samples import MixtureSamples
from headrace.measure.limit import decode_limit
from headrace.testing import synthesize
from reporting import data_folder, fresh_process, machine, say, spread

BATCH, SIZE = 64, 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", metavar="DIR", help="put the data here and keep them")
    parser.add_argument("--json", metavar="FILE", help="also write the figures here")
    parser.add_argument("--seconds", type=float, default=3, help="length of each turn")
    parser.add_argument("--repeats", type=int, default=9, help="turns")
    parser.add_argument("--threads", default="", help="only the scaling over these, as 1,2,4")
    parser.add_argument("--only", default="", help="only these parts, separated by commas")
    args = parser.parse_args()
    with data_folder(args.keep) as root:
        figures = run(root, args)
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


def run(root: Path, args: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {"machine": machine()}
    say("machine", figures["machine"])
    data = root / "oxe"
    if not data.exists():
        synthesize(data)
    mixture = hr.Mixture.load("oxe29", [f"root={data}", "defaults.split=train"])
    for source in mixture.active:
        hr.Catalog.open(mixture.folder(source))
    parts: dict[str, Callable[[], Any]] = {
        "limit": lambda: against_limit(mixture, args),
        "sources": lambda: against_single_sources(mixture, args),
        "metadata": lambda: full_metadata(mixture, args),
        "per_episode": lambda: one_per_episode(data, args),
        "first": lambda: first_batch(data, root),
        "memory": lambda: memory(data),
        "validation": lambda: validation_start(data),
        "check": lambda: checking(mixture),
        "overhead": lambda: overhead(mixture, args),
        "profile": lambda: profile(mixture, "oxe29", args, allowed_cpus()),
    }
    if args.threads:
        counts = [int(count) for count in args.threads.split(",")]
        parts = {
            "scaling_oxe29": lambda: scaling(mixture, "oxe29", counts, args),
            "scaling_jpeg256": lambda: scaling(small_jpeg(root), "JPEG 256x256", counts, args),
            "profile_oxe29": lambda: profile(mixture, "oxe29", args, counts[-1]),
            "profile_jpeg256": lambda: profile(small_jpeg(root), "JPEG 256", args, counts[-1]),
        }
    for name, measure in parts.items():
        if not args.only or name in args.only.split(","):
            figures[name] = measure()
    return figures


# -- measuring -----------------------------------------------------------------------------------


def opened(mixture: hr.Mixture, **options: Any) -> hr.Loader:
    """A loader that has reached its speed."""
    settings = {"batch_size": BATCH, "image_size": SIZE, "keep_free": 0, **options}
    loader = hr.Loader(mixture, **settings)
    warm_up(loader)
    return loader


def turn(loader: hr.Loader, seconds: float) -> float:
    """Samples a second of an open loader, after the batches that were ready while it had a rest."""
    for _ in range(10):
        next(loader)
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        count += len(next(loader))
    return count / (time.perf_counter() - started)


def rate(mixture: hr.Mixture, seconds: float, **options: Any) -> float:
    """Samples a second of a loader of its own."""
    with opened(mixture, **options) as loader:
        return turn(loader, seconds)


def warm_up(loader: hr.Loader) -> None:
    """Until every thread has its process, or for three seconds."""
    started = time.perf_counter()
    while time.perf_counter() - started < 3:
        next(loader)
        figures = loader.statistics().engine
        if len(figures.processes) == figures.threads:
            break
    for _ in range(8):
        next(loader)


def ratios(
    name: str, target: str, repeats: int, above: Callable[[], float], below: Callable[[], float]
) -> dict[str, Any]:
    """The ratio of two rates, measured next to each other, several times."""
    pairs = [(above(), below()) for _ in range(repeats)]
    found = [a / b for a, b in pairs]
    say(
        name,
        f"{spread(found, '{:.3f}')} in {repeats}; target {target}; "
        f"{statistics.median(a for a, _ in pairs):,.0f} over "
        f"{statistics.median(b for _, b in pairs):,.0f} samples/s",
    )
    return {"ratio": statistics.median(found), "ratios": found, "rates": pairs}


# -- the parts -----------------------------------------------------------------------------------


def against_limit(mixture: hr.Mixture, args: argparse.Namespace) -> dict[str, Any]:
    with opened(mixture) as loader:
        return ratios(
            "loader / decode limit, 29 sources",
            ">= 0.95",
            args.repeats,
            lambda: turn(loader, args.seconds),
            lambda: decode_limit(loader, seconds=args.seconds).samples_per_s,
        )


def against_single_sources(mixture: hr.Mixture, args: argparse.Namespace) -> dict[str, Any]:
    """The mixture against the mean cost of its sources alone, each with the same share."""
    seconds = max(1.0, args.seconds / 2)

    def alone() -> float:
        costs = [
            1 / rate(hr.Mixture((source,), mixture.root), seconds) for source in mixture.active
        ]
        return len(costs) / sum(costs)

    return ratios(
        "29 sources / the same alone",
        ">= 0.97",
        max(1, args.repeats // 4),
        lambda: rate(mixture, 2 * args.seconds),
        alone,
    )


def full_metadata(mixture: hr.Mixture, args: argparse.Namespace) -> dict[str, Any]:
    with opened(mixture, metadata="full") as full, opened(mixture, metadata="none") as none:
        return ratios(
            "full metadata / none",
            ">= 0.98",
            args.repeats,
            lambda: turn(full, args.seconds),
            lambda: turn(none, args.seconds),
        )


def one_per_episode(data: Path, args: argparse.Namespace) -> dict[str, Any]:
    def mixture(count: int) -> hr.Mixture:
        overrides = [
            f"root={data}",
            "defaults.split=train",
            f"defaults.samples_per_episode={count}",
        ]
        return hr.Mixture.load("oxe29", overrides)

    with opened(mixture(1)) as one, opened(mixture(0)) as pairs:
        return ratios(
            "samples_per_episode 1 / all pairs",
            ">= 0.97",
            args.repeats,
            lambda: turn(one, args.seconds),
            lambda: turn(pairs, args.seconds),
        )


def scaling(
    mixture: hr.Mixture, name: str, counts: Sequence[int], args: argparse.Namespace
) -> dict[str, Any]:
    found = {}
    for count in counts:
        with opened(mixture, workers=count, batch_size=128) as loader:
            found[str(count)] = ratios(
                f"{name}, {count} threads / limit",
                ">= 0.9 at 16" if name == "oxe29" else ">= 0.8 at 16",
                args.repeats,
                lambda loader=loader: turn(loader, args.seconds),  # type: ignore[misc]
                lambda count=count, loader=loader: (  # type: ignore[misc]
                    decode_limit(loader, seconds=args.seconds, processes=count).samples_per_s
                ),
            )
    return found


def small_jpeg(root: Path) -> hr.Mixture:
    """One dataset of 256x256 JPEG frames."""
    data = root / "jpeg256"
    if not data.exists():
        synthesize(data, only=["fmb"], episodes=32)
    return hr.Mixture.from_dict({"root": str(data), "sources": [{"name": "fmb"}]})


FIRST = """
import json, sys, time
import headrace as hr
mixture = hr.Mixture.from_dict(json.load(open(sys.argv[1])))
started = time.perf_counter()
with hr.Loader(mixture, batch_size=64, image_size=256, keep_free=0) as loader:
    made = time.perf_counter()
    next(loader)
    print(json.dumps([made - started, time.perf_counter() - started]))
"""


def first_batch(data: Path, root: Path) -> dict[str, Any]:
    """From built catalogs, in a fresh process, imports not counted."""
    found = {}
    names = list(hr.known_datasets().values())
    for copies, target in ((1, 1.0), (10, 2.0)):
        sources = []
        for copy in range(copies):
            for known in names:
                folder = data / known.folder if copy == 0 else root / f"copy{copy}" / known.folder
                if not folder.exists():
                    ignore = shutil.ignore_patterns(".headrace")
                    shutil.copytree(
                        data / known.folder, folder, copy_function=os.link, ignore=ignore
                    )
                hr.Catalog.open(folder)
                sources.append({"name": f"{known.name}_{copy}", "path": str(folder)})
        path = root / f"mixture{copies}.json"
        path.write_text(json.dumps({"sources": sources}))
        samples = [fresh_process(FIRST, str(path)) for _ in range(5)]
        first = [sample[1] for sample in samples]
        say(
            f"first batch, {len(sources)} sources",
            f"{spread(first, '{:.2f}')} s, of which "
            f"{statistics.median(s[0] for s in samples):.2f} s to open; target {target:.0f} s",
        )
        found[str(len(sources))] = first
    return found


MEMORY = """
import json, sys
import headrace as hr
mixture = hr.Mixture.load("oxe29", ["root=" + sys.argv[1], "defaults.split=train"])
budget = None if sys.argv[2] == "default" else sys.argv[2]
def memory(pid, *kinds):
    status = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status"))
    return sum(int(status[kind].split()[0]) for kind in kinds) / 1024
def anon():  # the slots are shared memory: counted here, and not again in the workers
    workers = loader.statistics().engine.processes
    return memory("self", "RssAnon", "RssShmem") + sum(memory(w, "RssAnon") for w in workers)
peak = 0
with hr.Loader(mixture, batch_size=64, image_size=256, keep_free=0, memory=budget) as loader:
    for number in range(150):
        next(loader)
        peak = max(peak, anon())
        if number == 100:
            for batch in loader.validation(limit_batches=3):
                peak = max(peak, anon())
    figures = loader.statistics().engine.budget
print(json.dumps([peak, figures.peak / 2**20, figures.limit / 2**20]))
"""


def memory(data: Path) -> dict[str, Any]:
    found = {}
    for budget in ("default", "256MiB", "128MiB"):
        peak, held, allowed = fresh_process(MEMORY, str(data), budget)
        say(
            f"memory, budget {budget}",
            f"{peak:.0f} MB in all processes (target 500); {held:.0f} of {allowed:.0f} MiB of the "
            "budget held at most",
        )
        found[budget] = {"anonymous_mb": peak, "held_mib": held, "budget_mib": allowed}
    return found


VALIDATION = """
import json, os, sys, threading, time
import headrace as hr
overrides = ["root=" + sys.argv[1], "defaults.split=train[:6]", "defaults.val_split=train[6:]"]
with hr.Loader(hr.Mixture.load("oxe29", overrides), batch_size=64, image_size=256,
               keep_free=0) as loader:
    for _ in range(20):
        next(loader)
    counts = [threading.active_count(), len(os.listdir("/proc/self/fd"))]
    found = []
    for _ in range(5):
        started = time.perf_counter()
        validation = loader.validation()
        next(validation)
        found.append(time.perf_counter() - started)
        del validation
        next(loader)
    later = [threading.active_count(), len(os.listdir("/proc/self/fd"))]
print(json.dumps([found, counts, later]))
"""


def validation_start(data: Path) -> dict[str, Any]:
    found, before, after = fresh_process(VALIDATION, str(data))
    say(
        "validation, to its first batch",
        f"{spread(found, '{:.2f}')} s, the first time "
        f"{found[0]:.2f} s; target 0.5 s; threads and files {before} before, {after} after",
    )
    return {"seconds": found, "before": before, "after": after}


def checking(mixture: hr.Mixture, tasks: int = 40, repeats: int = 7) -> dict[str, Any]:
    """CPU time of reading and decoding the same samples with and without checks, in turns."""
    samples = MixtureSamples(mixture, LoaderOptions(batch_size=32, image_size=256))
    filler = samples._filler()
    arrays = samples.read(samples.sampler.draw(np.arange(32)))
    plans = []
    for number in range(tasks):
        checked = samples.plan(samples.sampler.draw(np.arange(32 * number, 32 * number + 32)))
        plain = SamplePlan(checked.matrix.copy())
        plain.crcs[:] = -1
        plans.append((checked, plain))
    seconds = np.zeros((repeats, 2))
    for repeat in range(repeats):
        for number, pair in enumerate(plans):
            for which in (0, 1) if (repeat + number) % 2 else (1, 0):
                started = time.process_time()
                filler.fill(pair[which].matrix, arrays, Counters())
                seconds[repeat, which] += time.process_time() - started
    extra = ((seconds[:, 0] / seconds[:, 1] - 1) * 100).tolist()
    size = sum(int(plan.lengths.sum()) for plan, _ in plans) / (2 * 32 * tasks)
    say(
        "checksums of frames",
        f"{spread(extra, '{:.2f}')}% more CPU time, {size:,.0f} bytes a frame; <= 1",
    )
    return {"percent": extra, "bytes_per_frame": size}


def overhead(mixture: hr.Mixture, args: argparse.Namespace) -> dict[str, Any]:
    """Time of a sample beside reading and decoding: everything that is ours."""
    found = profile(mixture, "overhead", args, 1)
    ours = found["fields"] + found["CPU time of the loading process"]
    say(
        "overhead a sample, one thread",
        f"{ours:.0f} us beside {found['read']:.0f} us to read and {found['decode']:.0f} us to "
        f"decode its two frames ({found['fields']:.0f} us of it for action, state and text)",
    )
    return {"overhead_us": ours, **found}


def cpu_seconds(process: int | str) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def profile(
    mixture: hr.Mixture, name: str, args: argparse.Namespace, threads: int
) -> dict[str, Any]:
    """Where the CPUs' time goes, per sample: in the worker processes, and in the one that loads."""
    with hr.Loader(
        mixture, batch_size=128, image_size=SIZE, keep_free=0, workers=threads
    ) as loader:
        warm_up(loader)
        begin = loader.statistics().engine
        workers = begin.processes
        before = [cpu_seconds(worker) for worker in workers]
        here, started, count = cpu_seconds("self"), time.perf_counter(), 0
        while time.perf_counter() - started < args.seconds:
            count += len(next(loader))
        elapsed = time.perf_counter() - started
        spent = [cpu_seconds(worker) - b for worker, b in zip(workers, before, strict=True)]
        end = loader.statistics().engine
        ours = cpu_seconds("self") - here
    busy = {stage.name: stage.busy_s for stage in begin.stages}
    found = {stage.name: stage.busy_s - busy.get(stage.name, 0) for stage in end.stages}
    found["threads waiting for tasks"] = end.waiting_s - begin.waiting_s
    found["CPU time of worker processes"] = sum(spent)
    found["CPU time of the loading process"] = ours
    found["all threads"] = elapsed * threads
    listed = ", ".join(f"{stage} {1e6 * value / count:.0f}" for stage, value in found.items())
    say(f"profile, {name}, {threads} threads", f"us a sample: {listed}")
    return {stage: 1e6 * value / count for stage, value in found.items()}


if __name__ == "__main__":
    main()
