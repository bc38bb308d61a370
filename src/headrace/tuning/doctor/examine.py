"""Examining a mixture on this machine: its catalogs, costs, limits, and the loader alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from headrace.catalog.manifest import candidates, read_manifest
from headrace.config import Mixture
from headrace.engine.machine import allowed_cpus, available_memory
from headrace.engine.slots import slot_bytes
from headrace.errors import WorkerError
from headrace.loader.feed import MixtureFeed
from headrace.loader.loader import feed_of
from headrace.loader.sizes import PREFETCH
from headrace.measure.bench import bench
from headrace.measure.evidence import Evidence, run_evidence
from headrace.measure.job import BenchSettings, Job
from headrace.measure.runs import read_run
from headrace.tuning.doctor.limits import with_limits
from headrace.tuning.doctor.looking import loader_figures

__all__ = ["examine"]

_BENCH_SECONDS = 5.0


def examine(
    job: Job,
    *,
    step_ms: float = 0.0,
    seconds: float = _BENCH_SECONDS,
    watch: Callable[[str], None] = lambda _: None,
) -> Evidence:
    """What the mixture costs and the machine allows; with `step_ms`, beside a simulated step."""
    watch("opening")
    missing = _not_indexed(job.mixture)
    with job.loader(**job.options) as public:
        loader = feed_of(public)
        about = _about(loader, job.batch_size, _notes(loader, missing))
        about = with_limits(about, loader, watch)
    with TemporaryDirectory(prefix="headrace-doctor-") as runs:
        settings = BenchSettings(seconds=seconds, compute_ms=step_ms)
        folder, result = bench(
            job,
            settings=settings,
            runs=Path(runs),
            limit=False,
            draw=False,
            watch=lambda _, sight: watch(f"loader alone: {sight.phase}"),
        )
        if result["status"] != "complete":
            raise WorkerError(
                f"the loader did not run: {result['status']}: {result['cause']}",
                remedy="`headrace bench` with the same arguments keeps the log",
            )
        ran = run_evidence(read_run(folder))
    return replace(
        about,
        steps=ran.steps,
        step_s=ran.step_s,
        wait_s=ran.wait_s,
        simulated=ran.simulated,
        loader_alone=ran.loader_alone,
        cores_busy=ran.cores_busy,
        loop_work_s=ran.loop_work_s,
        loop_read_s=ran.loop_read_s,
        idle=ran.idle,
    )


def _about(loader: MixtureFeed, batch_size: int, notes: tuple[str, ...]) -> Evidence:
    """What can be said of a loader before it runs."""
    sizes = loader.sizes
    known = Evidence(
        batch_size=batch_size,
        cores=allowed_cpus(),
        processes=sizes.threads if sizes.processes else 0,
        slots=sizes.slots,
        slots_wanted=PREFETCH + 2,
        slot_bytes=slot_bytes(sizes.specs),
        available=available_memory(),
        notes=notes,
    )
    return replace(known, **loader_figures(loader))


def _not_indexed(mixture: Mixture) -> list[str]:
    """Sources that have no catalog yet; opening them builds one."""
    return [
        source.name
        for source in mixture.active
        if all(read_manifest(place) is None for place in candidates(mixture.folder(source)))
    ]


def _notes(loader: MixtureFeed, missing: list[str]) -> tuple[str, ...]:
    notes = []
    if missing:
        notes.append(f"{_some(missing)} had no catalog; it is built now")
    damaged = {s.name: len(s.catalog.quarantined) for s in loader.sources}
    if any(damaged.values()):
        listed = [f"{name} ({count:,})" for name, count in damaged.items() if count]
        notes.append(f"episodes in quarantine: {_some(listed)}")
    short = loader.statistics().too_short
    if any(short.values()):
        listed = [f"{name} ({count:,})" for name, count in short.items() if count]
        notes.append(f"episodes shorter than a window, never drawn: {_some(listed)}")
    return tuple(notes)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
