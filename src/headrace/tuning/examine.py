"""Examinations: of a mixture on this machine, and of any training step over any batches."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from headrace.catalog.manifest import UNCHECKED, candidates, read_manifest
from headrace.config import Mixture
from headrace.engine.machine import allowed_cpus, available_memory
from headrace.engine.slots import slot_bytes
from headrace.errors import UsageError, WorkerError
from headrace.loader import Loader
from headrace.loader.feed import MixtureFeed
from headrace.loader.loader import feed_of
from headrace.measure.bench import bench
from headrace.measure.evidence import Evidence, run_evidence
from headrace.measure.job import BenchSettings, Job
from headrace.measure.machine import finish_queued_work
from headrace.measure.quantities import amount
from headrace.measure.results import read_run
from headrace.measure.runs import DOCTOR, write_json
from headrace.measure.verdict import Verdict, could_be_data, give_verdict, verdict_text
from headrace.tuning.doctor import SLOTS_WANTED, Doctor, loader_figures, with_limits

_DRAINED = 3  # a third of the time alone: what was prefetched before is not counted
_CYCLES = 10  # of the longest wait: workers on several batches finish them in bursts
_MOST = 20  # times the time alone


def examine(
    job: Job,
    *,
    step_ms: float = 0.0,
    seconds: float = 5.0,
    watch: Callable[[str], None] = lambda _: None,
) -> Evidence:
    """What the mixture costs and the machine allows; with `step_ms`, beside a simulated step."""
    watch("opening")
    missing = _not_indexed(job.mixture)
    with Loader(job.mixture, job.loader, **job.options) as public:
        loader = feed_of(public)
        about = _about(loader, job.loader.batch_size, _notes(loader, missing))
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
        loop_stages=ran.loop_stages,
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
        slots_wanted=SLOTS_WANTED,
        slot_bytes=slot_bytes(sizes.specs),
        available=available_memory(),
        notes=notes,
    )
    return replace(known, **loader_figures(loader))


def _not_indexed(mixture: Mixture) -> list[str]:
    """Sources without a catalog; opening them builds one."""
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
    if unchecked := loader.statistics().unchecked:
        notes.append(f"{UNCHECKED}: {_some(list(unchecked))}")
    short = loader.statistics().too_short
    if any(short.values()):
        listed = [f"{name} ({count:,})" for name, count in short.items() if count]
        notes.append(f"episodes shorter than a window, never drawn: {_some(listed)}")
    return tuple(notes)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


# -- any step over any batches ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepExamination:
    """What was measured of a step and its data, and what follows."""

    evidence: Evidence
    verdict: Verdict
    tokens: int | None  #: of a sample

    @property
    def mfu(self) -> float | None:
        """Share of the device's peak that the model uses, waiting included."""
        return self.evidence.mfu

    @property
    def waiting(self) -> float | None:
        """Share of the step that waits for data."""
        return self.evidence.waiting

    @property
    def tokens_per_s(self) -> float | None:
        return _times(self.evidence.rate, self.tokens)

    @property
    def loader_tokens_per_s(self) -> float | None:
        return _times(self.evidence.loader_alone, self.tokens)

    def could_be_data(self, mfu: float) -> str:
        """Whether this model's MFU could fall to that because of the data, in a sentence."""
        return could_be_data(self.evidence, mfu)

    def to_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict.to_dict(),
            "evidence": self.evidence.to_dict(),
            "mfu": self.mfu,
            "waiting": self.waiting,
            "tokens_per_s": self.tokens_per_s,
            "loader_tokens_per_s": self.loader_tokens_per_s,
        }

    def __str__(self) -> str:
        lines = [verdict_text(self.verdict, self.evidence)]
        rates = [
            f"{name} {amount(value)} tokens/s"
            for name, value in (
                ("in the loop", self.tokens_per_s),
                ("loader alone", self.loader_tokens_per_s),
            )
            if value is not None
        ]
        return "\n".join([*lines, f"  {', '.join(rates)}"] if rates else lines)


def examine_step(
    batches: Iterable[Any],
    step: Callable[[Any], Any],
    *,
    flops_per_step: float | None = None,
    peak_flops: float | None = None,
    samples: int | None = None,
    tokens: int | None = None,
    steps: int = 30,
    warmup: int = 3,
    alone_s: float = 3.0,
    run: str | Path | None = None,
) -> StepExamination:
    """Say whether a step waits for its data, and how much that costs.

    Three measurements: the loader with nothing beside it, the loop of both, and the step over a
    batch that is there already. The loop waits for every step's result before it asks for the next
    batch, so that all waiting is for data; a loop that lets JAX queue steps waits no longer.

    >>> examination = examine_step(loader, step)                 # doctest: +SKIP
    >>> print(examination)                                       # doctest: +SKIP
    Compute-bound: the step waits for data 0.1% of the time; a faster loader cannot help.

    `step` takes a batch and returns something to wait for (its loss); it runs for real, some sixty
    times. The batches are used up, so give a loader of their own. `samples` and `tokens` (of a
    sample) are read off the first array of a batch, if they can be. With `run`, the figures go to
    that folder for `headrace doctor --run`.
    """
    found: list[StepExamination] = []
    for batch in examine_loop(
        batches,
        flops_per_step=flops_per_step,
        peak_flops=peak_flops,
        samples=samples,
        tokens=tokens,
        steps=steps,
        warmup=warmup,
        alone_s=alone_s,
        run=run,
        tell=found.append,
    ):
        if found:
            break
        finish_queued_work(step(batch))
        del batch
    return found[0]


def examine_loop(
    batches: Iterable[Any],
    *,
    flops_per_step: float | None = None,
    peak_flops: float | None = None,
    samples: int | None = None,
    tokens: int | None = None,
    steps: int = 30,
    warmup: int = 3,
    alone_s: float = 3.0,
    run: str | Path | None = None,
    tell: Callable[[StepExamination], None] = print,
) -> Iterator[Any]:
    """Batches for a training program whose step cannot be called, and `examine_step`'s verdict.

    Give what this returns to the program in the place of its batches. It first takes the loader
    alone; then come `warmup + steps` batches, the last of them again and again for as many steps,
    and with the next one the verdict is told. After that the batches continue.

    >>> trainer.fit(hr.examine_loop(loader))                     # doctest: +SKIP
    """
    if steps < 1 or warmup < 1:
        raise UsageError(f"steps {steps}, warmup {warmup}", remedy="Give numbers from 1 upwards")
    waiting = iter(batches)
    batch = _next(waiting)
    samples = samples or _size(batch, 0)
    tokens = tokens or _size(batch, 1)
    if samples is None:
        raise UsageError("the samples of a batch cannot be told", remedy="Give samples=")
    doctor = Doctor(
        None,
        flops_per_step=flops_per_step,
        peak_flops=peak_flops,
        run=run,
        warmup=warmup,
        warmup_seconds=0.0,
        limits=False,
        quiet=True,
    )
    with doctor:
        rate = _alone(waiting, samples, alone_s)
        watched = doctor.over(waiting, samples)
        for _ in range(warmup + steps):
            try:
                batch = next(watched)
            except StopIteration:
                break
            yield batch
            _finish_step()
    began = 0.0
    for number in range(warmup + steps):
        if number == warmup:
            began = perf_counter()
        yield batch
        _finish_step()
    replayed = (perf_counter() - began) / steps
    evidence = replace(doctor.evidence(), loader_alone=rate, replayed_s=replayed)
    found = StepExamination(evidence, give_verdict(evidence), tokens)
    if folder := run or os.environ.get("HEADRACE_RUN"):
        write_json(Path(folder) / DOCTOR, found.to_dict())
    tell(found)
    yield batch
    del batch
    yield from waiting


def _finish_step() -> None:
    """Wait for a step whose result is not known here: with JAX, for all arrays that there are."""
    jax = sys.modules.get("jax")
    finish_queued_work(None if jax is None else jax.live_arrays())


def _alone(batches: Iterator[Any], samples: int, limit_s: float) -> float | None:
    """Samples/s with nothing beside it; None if the batches end before there is a figure."""
    if limit_s <= 0:
        return None
    begun = last = perf_counter()
    started, counted, longest = begun, 0, 0.0
    drained = False
    for batch in batches:
        del batch
        now = perf_counter()
        if not drained and now - begun >= limit_s / _DRAINED:
            drained, started = True, now
        elif drained:
            counted += 1
            longest = max(longest, now - last)
        last = now
        enough = max(limit_s - (started - begun), min(_CYCLES * longest, _MOST * limit_s))
        if counted and now - started >= enough:
            break
    return counted * samples / (last - started) if counted else None


def _next(batches: Iterator[Any]) -> Any:
    for batch in batches:
        return batch
    raise UsageError("there is no batch", remedy="Look at the loader")


def _size(batch: Any, axis: int) -> int | None:
    """A dimension of a batch's first array."""
    values = list(batch.values()) if isinstance(batch, Mapping) else [batch]
    shape = getattr(values[0], "shape", ()) if values else ()
    return int(shape[axis]) if len(shape) > axis else None


def _times(rate: float | None, tokens: int | None) -> float | None:
    return None if rate is None or tokens is None else rate * tokens
