"""Looking at a loader while it works, without disturbing it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from time import perf_counter, process_time, thread_time
from typing import Any

import numpy as np

from headrace.engine.machine import allowed_cpus, available_memory
from headrace.engine.statistics import EngineStatistics, StreamStatistics
from headrace.loader import Batch
from headrace.loader.feed import MixtureFeed
from headrace.loader.sizes import PREFETCH
from headrace.measure.machine import tree_cpu_seconds

__all__ = ["Looks", "copy_figures", "loader_figures"]

_LOOK_SECONDS = 1.0  # at most so often, and at most for half a percent of the time
_PAUSE = 200
_SLOTS_WANTED = PREFETCH + 2  # one being filled and one with the consumer


@dataclass(frozen=True, slots=True)
class _Look:
    now: float
    cpu_s: float  #: of all processes
    process_s: float  #: of this one
    thread_s: float  #: of the thread that looks: the loop's
    engine: EngineStatistics | None


class Looks:
    """Figures of a loader and its processes between two moments, and their extremes."""

    def __init__(self, loader: MixtureFeed | None) -> None:
        self._loader = loader
        self._before: _Look | None = None
        self._after: _Look | None = None
        self._ended_at = -1
        self._slots: int | None = None
        self._slot_bytes: int | None = None
        self._next = 0.0

    def begin(self) -> None:
        """The warm-up is over."""
        self._before = self._look()

    def again(self, now: float) -> None:
        """Look whether memory has become short, if it is time."""
        if self._before is None or now < self._next or self._loader is None:
            return
        self._mind(self._loader.statistics().engine)
        spent = perf_counter() - now
        self._next = now + max(_LOOK_SECONDS, _PAUSE * spent)

    def end(self, batches: int) -> None:
        """The loop has paused or ended after so many batches; a second call tells nothing new."""
        if self._before is not None and batches != self._ended_at:
            self._after, self._ended_at = self._look(), batches

    def batch(self, batch: Batch) -> None:
        """A batch, whose size in memory matters."""
        if self._slot_bytes is None:
            values = (getattr(batch, name) for name in batch.__dataclass_fields__)
            self._slot_bytes = sum(v.nbytes for v in values if isinstance(v, np.ndarray))

    def figures(self) -> dict[str, Any]:
        """What is known, under the names that `Evidence` has for it."""
        found: dict[str, Any] = {"cores": allowed_cpus(), "available": available_memory()}
        before, after = self._before, self._after
        if before is None or after is None or after.now <= before.now:
            return found
        elapsed = after.now - before.now
        found["cores_busy"] = (after.cpu_s - before.cpu_s) / elapsed
        if self._loader is None or before.engine is None or after.engine is None:
            return found
        # Without processes the loader's threads are part of this one.
        if after.engine.processes:
            found["loop_cores"] = (after.process_s - before.process_s) / elapsed
        else:
            found["loop_cores"] = (after.thread_s - before.thread_s) / elapsed
        images = after.engine.images - before.engine.images
        frames = len(self._loader.sources[0].offsets)
        all_threads = after.engine.threads * elapsed
        per_sample = frames / images if images else 0.0
        return {
            **found,
            "processes": len(after.engine.processes),
            "loop_work_s": (_busy(after.engine) - _busy(before.engine)) * per_sample or None,
            "loop_read_s": (_busy(after.engine, "read") - _busy(before.engine, "read")) * per_sample
            or None,
            "idle": min(1.0, (after.engine.waiting_s - before.engine.waiting_s) / all_threads),
            "slots": self._slots,
            "slots_wanted": _SLOTS_WANTED,
            "slot_bytes": self._slot_bytes,
        }

    def _look(self) -> _Look:
        engine = self._loader.statistics().engine if self._loader is not None else None
        if engine is not None:
            self._mind(engine)
        cpu_s = tree_cpu_seconds(os.getpid())
        return _Look(perf_counter(), cpu_s, process_time(), thread_time(), engine)

    def _mind(self, engine: EngineStatistics) -> None:
        stream = _training(engine)
        if stream is not None:
            self._slots = min(self._slots or stream.slot_limit, stream.slot_limit)


def loader_figures(loader: MixtureFeed) -> dict[str, Any]:
    """What a loader is like, under the names that `Evidence` has for it."""
    options = loader.options
    return {
        "workers": loader.sizes.threads,
        "budget": loader.statistics().engine.budget.limit,
        "budget_given": options.memory is not None,
        "keep_free": options.keep_free_bytes,
        "image_size": options.size,
    }


def copy_figures(loader: Any) -> dict[str, Any]:
    """How long a loader's copies to its device take, if it makes any."""
    copying = getattr(loader, "copying", None)
    found = copying() if copying is not None else None
    if found is None or not found.copies:
        return {}
    return {"copy_s": found.seconds / found.copies, "copy_wait_s": found.waited_s / found.copies}


def _training(engine: EngineStatistics) -> StreamStatistics | None:
    """The stream of training: that which has delivered most."""
    return max(engine.streams, key=lambda stream: stream.delivered, default=None)


def _busy(engine: EngineStatistics, only: str | None = None) -> float:
    return sum(stage.busy_s for stage in engine.stages if only in (None, stage.name))
