"""What is known of a run, and of the machine and data behind it: what verdicts rest on. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headrace.measure.columns import finite
from headrace.measure.quantities import amount, megabytes, seconds, share
from headrace.measure.results import Run
from headrace.measure.runs import inner

#: A step that waits no more than this share of its time is not starved. The design asks for 1% on
#: the largest machine; below 2% no change to the data would be noticed.
STARVED = 0.02
#: At this share of the decode limit the loader itself costs next to nothing (the design's target).
AT_LIMIT = 0.95
#: From here on a loader delivers about what the machine allows; below, something else holds it up.
NEAR_LIMIT = 0.8
#: A step may take so much longer in the loop than replayed before the loop is blamed: a replayed
#: batch lies in the CPU's caches, and twenty steps are few.
OVERLONG = 1.15
_SOURCES = 6  # shown in a text; the rest rarely matters


@dataclass(frozen=True, slots=True)
class SourceCost:
    """What one sample of a source costs a worker that has nothing else to do."""

    name: str
    share: float  #: of the draws
    encoding: str  #: png, jpeg, or both as "jpeg and png"
    height: int
    width: int
    bytes: float  #: encoded, of all frames of a sample
    read_s: float
    decode_s: float  #: with the resize

    @property
    def work_s(self) -> float:
        return self.read_s + self.decode_s


@dataclass(frozen=True, slots=True)
class Evidence:
    """A loop, its loader and its machine, measured; None where something is not known."""

    batch_size: int | None = None
    steps: int = 0  #: measured, without the warm-up
    step_s: float | None = None  #: a step in the loop, without its wait for data
    wait_s: float | None = None  #: that it waits for data
    simulated: bool = False  #: the step only sleeps, so it is in nobody's way
    replayed_s: float | None = None  #: the same step over a batch that is there already
    loader_alone: float | None = None  #: samples/s with nothing beside it
    decode_limit: float | None = None  #: samples/s of tight loops on as many cores
    storage_limit: float | None = None  #: samples/s of reading alone
    copy_s: float | None = None  #: a batch's copy to the device
    copy_in_step: bool = False  #: the loop waits for it; else it runs beside the step
    copy_wait_s: float = 0.0  #: of a step, held up until a copy beside it is over
    cores: int | None = None  #: that may be used
    cores_busy: float | None = None  #: CPU seconds a second, of the loop and all its processes
    loop_cores: float | None = None  #: the same of the loop alone, without the loader's work
    workers: int | None = None  #: of the loader
    processes: int | None = None  #: that they have; 0: they are threads of the loop's process
    loop_work_s: float | None = None  #: seconds of a worker that a sample took in the loop
    loop_read_s: float | None = None  #: of these, in reading
    loop_stages: Mapping[str, float] | None = None  #: of these, in each stage
    idle: float | None = None  #: share of the workers' time without work
    slots: int | None = None  #: fewest batches that there was room for in memory at once
    slots_wanted: int | None = None
    slot_bytes: int | None = None
    budget: int | None = None
    budget_given: bool = False  #: by the user
    available: int | None = None  #: memory that is free
    keep_free: int | None = None  #: memory that is to be left free
    image_size: tuple[int, int] | None = None  #: that frames are resized to
    flops_per_step: float | None = None
    peak_flops: float | None = None
    gpu: Mapping[str, Any] | None = None  #: its use, as result.json has it
    sources: tuple[SourceCost, ...] = ()
    notes: tuple[str, ...] = ()  #: worth knowing, without weight in the verdict

    @property
    def period_s(self) -> float | None:
        """From one step to the next."""
        if self.step_s is None or self.wait_s is None:
            return None
        return self.step_s + self.wait_s

    @property
    def waiting(self) -> float | None:
        """Share of the step that waits for data."""
        if self.wait_s is None or not self.period_s:
            return None
        return self.wait_s / self.period_s

    @property
    def bound_s(self) -> float | None:
        """A step with perfect data: replayed, else without its wait. Never longer than now."""
        if self.replayed_s is None:
            return self.step_s
        return self.replayed_s if not self.period_s else min(self.replayed_s, self.period_s)

    @property
    def rate(self) -> float | None:
        """Samples/s in the loop."""
        if not self.batch_size or not self.period_s:
            return None
        return self.batch_size / self.period_s

    @property
    def read_s(self) -> float | None:
        """Reading of a mean sample, by a worker alone."""
        return sum(s.share * s.read_s for s in self.sources) if self.sources else None

    @property
    def decode_s(self) -> float | None:
        """Decoding of a mean sample, by a worker alone."""
        return sum(s.share * s.decode_s for s in self.sources) if self.sources else None

    @property
    def decode_capacity(self) -> float | None:
        """Samples/s that decoding allows: the decode limit, else by the costs of the sources."""
        return self.decode_limit or self._all_workers(self.decode_s)

    @property
    def storage_capacity(self) -> float | None:
        """Samples/s that reading allows: the storage limit, or less through the loader's store."""
        return _least(self.storage_limit, self._all_workers(self.read_s))

    @property
    def capacity(self) -> float | None:
        """Samples/s that the loader can deliver here when nothing disturbs it."""
        if self.loader_alone is not None:
            return self.loader_alone
        decode, read = self.decode_capacity, self._all_workers(self.read_s)
        if decode and read:  # a worker reads and decodes in turn
            decode = 1 / (1 / decode + 1 / read)
        return _least(decode, self.storage_limit)

    @property
    def alone_s(self) -> float | None:
        """A batch of the loader when nothing disturbs it."""
        return self.batch_size / self.capacity if self.batch_size and self.capacity else None

    @property
    def waits(self) -> bool:
        """Whether the step is starved."""
        return self.waiting is not None and self.waiting > STARVED

    @property
    def at_capacity(self) -> bool:
        """Whether the loader delivers about what it can."""
        return bool(self.rate and self.capacity and self.rate >= NEAR_LIMIT * self.capacity)

    @property
    def overlong(self) -> bool:
        """Whether the step is longer than the same step replayed, by more than its wait."""
        return bool(self.step_s and self.replayed_s and self.step_s > OVERLONG * self.replayed_s)

    @property
    def loop_is_busy(self) -> bool:
        """Whether the loop can be in the way: by Python's lock no more than the time it is busy."""
        return self.loop_cores is not None and self.loop_cores > 1 - NEAR_LIMIT

    @property
    def slots_are_held_down(self) -> bool:
        """Whether there was room for fewer batches than the loader wants."""
        return bool(self.slots and self.slots_wanted and self.slots < self.slots_wanted)

    @property
    def reads_most(self) -> bool:
        """Whether workers spent most of the loop in reads: a disk that is slow while it trains.

        Known of processes, or beside a step that sleeps: a thread's reads also wait for Python.
        """
        if not (self.processes or self.simulated) or not self.loop_work_s:
            return False
        return (self.loop_read_s or 0.0) > 0.5 * self.loop_work_s

    @property
    def storage_is_nearer(self) -> bool | None:
        """Whether reading limits rather than decoding; None if one of them is not known."""
        if self.reads_most:
            return True
        storage, decode = self.storage_capacity, self.decode_capacity
        if storage is None or decode is None:
            return None
        return storage < decode

    @property
    def mfu(self) -> float | None:
        """Share of the device's peak that the model uses now."""
        return self._utilisation(self.period_s)

    @property
    def mfu_with_perfect_data(self) -> float | None:
        """What the share would be if no step ever waited."""
        return self._utilisation(self.bound_s)

    def _utilisation(self, each_s: float | None) -> float | None:
        if not each_s or not self.flops_per_step or not self.peak_flops:
            return None
        return self.flops_per_step / each_s / self.peak_flops

    def _all_workers(self, each_s: float | None) -> float | None:
        return self.workers / each_s if self.workers and each_s else None

    def shares_of(self, cost: Callable[[SourceCost], float]) -> list[tuple[SourceCost, float]]:
        """Each source's share of a cost, the largest first; empty where it is nothing."""
        total = sum(source.share * cost(source) for source in self.sources)
        if total <= 0:
            return []
        parts = [(source, source.share * cost(source) / total) for source in self.sources]
        return sorted(parts, key=lambda part: -part[1])

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Evidence:
        """The inverse of `to_dict`; keys of later versions are left out."""
        known = {field.name for field in dataclasses.fields(Evidence)}
        found = {key: value for key, value in values.items() if key in known}
        found.setdefault("workers", values.get("threads"))  # as it was called at first
        found["sources"] = tuple(SourceCost(**source) for source in values.get("sources", ()))
        found["notes"] = tuple(values.get("notes", ()))
        if found.get("image_size"):
            found["image_size"] = tuple(found["image_size"])
        return Evidence(**found)


def _least(*rates: float | None) -> float | None:
    return min((rate for rate in rates if rate), default=None)


def run_evidence(run: Run) -> Evidence:
    """What a doctor has left in a run's folder, else what follows from the run's figures."""
    if not run.doctor:
        return _figures_evidence(run)
    try:
        return Evidence.from_dict(run.doctor["evidence"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        found = _figures_evidence(run)
        note = f"doctor.json holds no evidence ({error!r}): the rest of the run is judged"
        return replace(found, notes=(*found.notes, note))


def _figures_evidence(run: Run) -> Evidence:
    numbers = run.numbers
    rate, wait, mean = (numbers.get(key) for key in ("samples_per_s", "stall_s_per_step", "mean_s"))
    measured = run.batches.measured()
    # A benchmark without a simulated step has nothing that could wait.
    alone = numbers.get("simulated_step_ms") == 0
    step = None if alone or wait is None or mean is None else max(0.0, mean - wait)
    cores = _whole(finite(run.machine.get("cores_allowed")))
    job = inner(inner(run.stated, "config"), "job")
    spent, budget, samples = (numbers.get(k) for k in ("cpu_s_per_sample", "budget_mb", "samples"))
    busy = sum(stage.busy_s or 0.0 for stage in run.stages.values())
    waiting = sum(stage.waiting_s or 0.0 for stage in run.stages.values())
    reading = run.stages["read"].busy_s if "read" in run.stages else None
    stages = {
        name: stage.busy_s / samples
        for name, stage in run.stages.items()
        if stage.busy_s and samples
    }
    size = _whole(finite(job.get("image_size")))
    ending = () if run.status == "complete" else (_ending(run),)
    return Evidence(
        batch_size=round(float(np.median(measured.samples))) if len(measured) else None,
        steps=len(measured),
        step_s=step,
        wait_s=None if step is None else wait,
        simulated=bool(numbers.get("simulated_step_ms")),
        loader_alone=rate if alone else None,
        decode_limit=numbers.get("decode_limit_samples_per_s"),
        storage_limit=numbers.get("storage_limit_samples_per_s"),
        cores=cores,
        cores_busy=spent * rate if spent is not None and rate is not None else None,
        workers=_whole(finite(job.get("workers", job.get("threads")))) or cores,
        loop_work_s=busy / samples if busy and samples else None,
        loop_read_s=reading / samples if reading and samples else None,
        loop_stages=stages or None,
        idle=waiting / (busy + waiting) if busy else None,
        budget=None if budget is None else round(budget * 1e6),
        slots=_whole(numbers.get("slots")),
        slots_wanted=_whole(numbers.get("slots_wanted")),
        image_size=(size, size) if size else None,
        gpu=inner(run.stated, "gpu") or None,
        notes=(*ending, *run.problems),
    )


def _ending(run: Run) -> str:
    return f"status of the run: {run.status}" + (f" ({run.cause})" if run.cause else "")


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)


# -- in words --------------------------------------------------------------------------------------


def source_lines(e: Evidence) -> list[str]:
    parts = e.shares_of(lambda source: source.work_s)
    if not parts:
        return []
    width = max(len(source.name) for source, _ in parts[:_SOURCES])
    lines = ["sources, by their share of the work (a sample: encoded bytes, read, decode):"]
    for source, part in parts[:_SOURCES]:
        kind = f"{source.encoding} {source.height}x{source.width}"
        lines.append(
            f"  {source.name:<{width}} {share(part):>4}  {kind:<14} "
            f"{source.bytes / 1000:>6,.0f} kB  {seconds(source.read_s):>7}  "
            f"{seconds(source.decode_s):>7}"
        )
    if rest := parts[_SOURCES:]:
        lines.append(f"  {len(rest)} more, {share(sum(part for _, part in rest))} of the work")
    return lines


def evidence_lines(e: Evidence) -> tuple[str, ...]:
    """Every figure that is known, a line each; what is not known is said at the end."""
    machine = (*_machine_lines(e), *_gpu_lines(e), *_mfu_lines(e))
    return (*_loop_lines(e), *_loader_lines(e), *machine, *_missing(e))


def _loop_lines(e: Evidence) -> list[str]:
    lines = []
    if e.waiting is not None:
        lines.append(
            f"step: {seconds(e.step_s)} and {seconds(e.wait_s)} of waiting "
            f"({share(e.waiting, 1)}), mean of {e.steps:,}"
        )
    if e.replayed_s is not None:
        more = ""
        if e.period_s and e.replayed_s:
            more = f"; perfect data would be {max(1.0, e.period_s / e.replayed_s):.2f}x"
        lines.append(f"the same step over a batch that is there: {seconds(e.replayed_s)}{more}")
    if e.copy_s is not None:
        where = "in the step" if e.copy_in_step else "beside the step"
        lines.append(f"copy to the device: {seconds(e.copy_s)} a batch, {where}")
    return lines


def _loader_lines(e: Evidence) -> list[str]:
    lines = []
    if e.rate is not None:
        lines.append(f"in the loop: {amount(e.rate)} samples/s")
    if e.loader_alone is not None:
        lines.append(f"loader alone: {amount(e.loader_alone)} samples/s")
    limits = [
        f"{name} {amount(value)} samples/s"
        for name, value in (("decoding", e.decode_limit), ("storage", e.storage_limit))
        if value is not None
    ]
    if limits:
        lines.append(f"limits: {', '.join(limits)}")
    if e.read_s is not None and e.decode_s is not None:
        line = f"a sample alone: {seconds(e.read_s)} to read, {seconds(e.decode_s)} to decode"
        if e.loop_work_s is not None:
            line += f"; in the loop {seconds(e.loop_work_s)} in all"
        lines.append(line)
    if e.loop_stages:
        parts = ", ".join(f"{seconds(each)} {name}" for name, each in e.loop_stages.items())
        lines.append(f"a sample in the loop: {parts}")
    return lines


def _machine_lines(e: Evidence) -> list[str]:
    lines = []
    if e.cores is not None:
        busy = "" if e.cores_busy is None else f"{amount(e.cores_busy)} of "
        loop = "" if e.loop_cores is None else f" (the loop itself {amount(e.loop_cores)})"
        many = "worker" if e.workers == 1 else "workers"
        work = "" if e.workers is None else f"; the loader has {e.workers} {many}"
        work += ", threads of this process" if e.processes == 0 and work else ""
        idle = "" if e.idle is None else f", without work {share(e.idle)} of the time"
        lines.append(f"cores: {busy}{e.cores}{' busy' if busy else ''}{loop}{work}{idle}")
    memory = []
    if e.budget is not None:
        memory.append(f"budget {megabytes(e.budget / 1e6)}")
    if e.slots is not None:
        of = f" of {e.slots_wanted}" if e.slots_wanted and e.slots <= e.slots_wanted else ""
        memory.append(f"room for {e.slots}{of} batches")
    if e.available is not None:
        memory.append(f"{megabytes(e.available / 1e6)} available")
    if memory:
        lines.append(f"memory: {', '.join(memory)}")
    return lines


def _gpu_lines(e: Evidence) -> list[str]:
    gpu = e.gpu or {}
    used = inner(gpu, "utilization_percent")
    mean, low = finite(used.get("mean")), finite(used.get("p10"))
    peak, total = finite(gpu.get("memory_peak_bytes")), finite(gpu.get("memory_total_bytes"))
    parts = []
    if mean is not None and low is not None:
        parts.append(f"utilization {mean:.0f}% (10th percentile {low:.0f}%)")
    if peak and total:
        parts.append(f"memory {peak / 1e9:.1f} of {total / 1e9:.1f} GB at most")
    return [f"GPU: {gpu.get('name', '?')}, {', '.join(parts)}"] if parts else []


def _mfu_lines(e: Evidence) -> list[str]:
    now, perfect = e.mfu, e.mfu_with_perfect_data
    if now is None or perfect is None:
        return []
    part = share((perfect - now) / (1 - now)) if now < 1 else "0%"
    return [
        f"MFU {share(now, 1)}; with perfect data {share(perfect, 1)}: data is {part} of what is "
        "missing, the rest is the model's own"
    ]


def _missing(e: Evidence) -> list[str]:
    """What was not measured and might change the verdict."""
    unknown = []
    if e.replayed_s is None and e.step_s is not None and not e.simulated:
        unknown.append("the step replayed over a batch that is there")
    if e.capacity is None:
        unknown.append("what the loader could deliver")
    return [f"not measured: {', '.join(unknown)}"] if unknown else []
