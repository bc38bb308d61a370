"""Figures of a running engine, frozen: benchmark, doctor and callbacks read only these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

#: What a worker did: the stage, and when it began and ended, by `time.perf_counter`, which all
#: processes of a machine share.
Span: TypeAlias = tuple[str, float, float]


class Counters:
    """What one thread has done; only that thread writes, so there is no lock."""

    __slots__ = ("at", "bytes", "images", "process", "seconds", "spans", "tasks", "waiting")

    def __init__(self, at: memoryview | list[int] | None = None, *, spans: bool = False) -> None:
        #: [0]: which row of its plan is being filled; others look at it to see progress.
        self.at = [0] if at is None else at
        self.seconds: dict[str, float] = {}  # busy, by stage
        self.waiting = 0.0
        self.tasks = 0
        self.images = 0
        self.bytes = 0
        self.process = 0  # number of the process that does its work; 0: the thread itself
        #: Each span of the work, for a trace; None: they are not recorded.
        self.spans: list[Span] | None = [] if spans else None

    def add(self, stage: str, seconds: float) -> None:
        """Time spent busy in a stage."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    def values(self) -> tuple[dict[str, float], int, int, list[Span] | None]:
        """What a process reports to its thread, which calls `merge` with it."""
        return self.seconds, self.images, self.bytes, self.spans

    def merge(
        self, seconds: dict[str, float], images: int, read: int, spans: list[Span] | None
    ) -> None:
        """Count what a process has done for this thread."""
        for stage, more in seconds.items():
            self.add(stage, more)
        self.images += images
        self.bytes += read
        if spans and self.spans is not None:
            self.spans.extend(spans)


@dataclass(frozen=True, slots=True)
class BudgetStatistics:
    """A budget at one moment."""

    limit: int  #: bytes that may be held
    held: int  #: bytes held now
    peak: int  #: most bytes held so far


@dataclass(frozen=True, slots=True)
class StageStatistics:
    """Time that all threads together were busy in one stage."""

    name: str
    busy_s: float


@dataclass(frozen=True, slots=True)
class StreamStatistics:
    """A stream of batches at one moment."""

    delivered: int  #: batches handed to the consumer
    ready: int  #: batches that wait for the consumer
    filling: int  #: batches that are being filled
    consumer_waited_s: float  #: time the consumer has waited for batches
    slots: int  #: slots made
    slot_limit: int  #: slots there may be


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """An engine at one moment."""

    threads: int
    stages: tuple[StageStatistics, ...]
    waiting_s: float  #: time that all threads together waited for work
    tasks: int
    images: int
    bytes_read: int
    queued_tasks: int
    budget: BudgetStatistics
    streams: tuple[StreamStatistics, ...]
    processes: tuple[int, ...] = ()  #: numbers of the processes that work for threads
