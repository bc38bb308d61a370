"""Everything a verdict may rest on. Each figure may be missing, and a rule says so if it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.measure.starvation import wait_share

__all__ = ["Evidence", "SourceCost"]


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
    threads: int | None = None  #: of the loader
    processes: int | None = None  #: that work for them
    loop_work_s: float | None = None  #: seconds of a worker that a sample took in the loop
    loop_read_s: float | None = None  #: of these, in reading
    idle: float | None = None  #: share of the workers' time without work
    slots: int | None = None  #: fewest batches that there might be in memory at once
    slots_wanted: int | None = None
    slot_bytes: int | None = None
    budget: int | None = None
    budget_given: bool = False  #: by the user
    available: int | None = None  #: memory that is free
    keep_free: int | None = None  #: memory that is to be left free
    image_size: tuple[int, int] | None = None  #: that frames are resized to
    flops_per_step: float | None = None
    peak_flops: float | None = None
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
        if self.step_s is None or self.wait_s is None or not self.period_s:
            return None
        return wait_share(self.wait_s, self.step_s)

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
        if not self.sources:
            return None
        return sum(source.share * source.read_s for source in self.sources)

    @property
    def decode_s(self) -> float | None:
        """Decoding of a mean sample, by a worker alone."""
        if not self.sources:
            return None
        return sum(source.share * source.decode_s for source in self.sources)

    @property
    def decode_capacity(self) -> float | None:
        """Samples/s that decoding allows: the decode limit, else by the costs of the sources."""
        return self.decode_limit or _all_threads(self.threads, self.decode_s)

    @property
    def storage_capacity(self) -> float | None:
        """Samples/s that reading allows: the storage limit, or less through the loader's store."""
        return _least(self.storage_limit, _all_threads(self.threads, self.read_s))

    @property
    def capacity(self) -> float | None:
        """Samples/s that the loader can deliver here when nothing disturbs it."""
        if self.loader_alone is not None:
            return self.loader_alone
        decode, read = self.decode_capacity, _all_threads(self.threads, self.read_s)
        if decode and read:  # a worker reads and decodes in turn
            decode = 1 / (1 / decode + 1 / read)
        return _least(decode, self.storage_limit)

    @property
    def reads_most(self) -> bool:
        """Whether workers spent most of the loop in reads: a disk that is slow while it trains.

        Told of processes, or beside a step that sleeps: a thread's reads also wait for Python.
        """
        if not (self.processes or self.simulated) or not self.loop_work_s:
            return False
        return (self.loop_read_s or 0.0) > 0.5 * self.loop_work_s

    @property
    def storage_is_nearer(self) -> bool | None:
        """Whether reading limits rather than decoding; None if neither is known."""
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

    def _utilisation(self, seconds: float | None) -> float | None:
        if not seconds or not self.flops_per_step or not self.peak_flops:
            return None
        return self.flops_per_step / seconds / self.peak_flops

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Evidence:
        """The inverse of `to_dict`; keys of later versions are left out."""
        known = {field.name for field in dataclasses.fields(Evidence)}
        found = {key: value for key, value in values.items() if key in known}
        found["sources"] = tuple(SourceCost(**source) for source in values.get("sources", ()))
        found["notes"] = tuple(values.get("notes", ()))
        if found.get("image_size"):
            found["image_size"] = tuple(found["image_size"])
        return Evidence(**found)


def _least(*rates: float | None) -> float | None:
    return min((rate for rate in rates if rate), default=None)


def _all_threads(threads: int | None, seconds: float | None) -> float | None:
    return threads / seconds if threads and seconds else None
