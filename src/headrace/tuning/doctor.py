"""The doctor: watches a training loop without disturbing it, and says what limits it."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter, process_time, thread_time
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import numpy as np

from headrace.engine.machine import allowed_cpus, available_memory
from headrace.engine.statistics import EngineStatistics
from headrace.errors import HeadraceError, UsageError
from headrace.loader import Batch
from headrace.loader.feed import MixtureFeed
from headrace.loader.loader import feed_of
from headrace.loader.sizes import PREFETCH
from headrace.measure.clock import Step, StepClock
from headrace.measure.evidence import STARVED, Evidence
from headrace.measure.limit import decode_limit, source_costs, storage_limit
from headrace.measure.machine import (
    MemoryWatch,
    finish_queued_work,
    machine_facts,
    tree_cpu_seconds,
)
from headrace.measure.results import summarise
from headrace.measure.runs import DOCTOR, RESULT, RunWriter, outcome_of, source_counts, write_json
from headrace.measure.verdict import Verdict, give_verdict, verdict_text

_T = TypeVar("_T")
_log = logging.getLogger("headrace")

_REPLAY_WARMUP = 3  # steps: compilers and allocators settle
_LOOK_SECONDS = 1.0  # between two looks, which take at most half a percent of the time
_PAUSE = 200
SLOTS_WANTED = PREFETCH + 2  # one being filled and one with the consumer

_DECODE_SECONDS = 1.5
_STORAGE_SECONDS = 0.5
_STORAGE_DRAWS = 8192  # a warm page cache is through with them in less


class Doctor:
    """Watches a training loop and says what limits it.

    >>> import headrace as hr
    >>> with hr.Loader("oxe29.yaml", batch_size=64, image_size=256) as loader:  # doctest: +SKIP
    ...     with hr.Doctor(loader) as doctor:
    ...         for batch, _ in zip(loader, range(1000)):
    ...             train_step(batch)
    ...         doctor.headroom(train_step, batch)       # what the step could do with perfect data
    Compute-bound: the step waits for data 0.4% of the time; a faster loader cannot help.

    The loop is as it always is: every batch of the loader is counted as it arrives. When the loop
    has waited for data, leaving the block takes some seconds, in which the limits of machine and
    data are measured (`limits=False` does without). With `run`, or HEADRACE_RUN in the
    environment, figures go to that folder for `headrace doctor --run` and `headrace report`;
    `run=False`: to none, whatever the environment says.

    Another loader's loop is watched by `Doctor(None)`: `for batch in doctor.over(batches, 64)`.
    """

    def __init__(
        self,
        loader: Any,
        *,
        flops_per_step: float | None = None,
        peak_flops: float | None = None,
        run: str | Path | Literal[False] | None = None,
        warmup: int = 8,
        warmup_seconds: float = 3.0,
        limits: bool = True,
        quiet: bool = False,
    ) -> None:
        self._outer = loader
        self._loader = _watched(loader)
        self._flops = (flops_per_step, peak_flops)
        self._clock = StepClock(warmup=warmup, warmup_s=warmup_seconds)
        self._looks = _Looks(self._loader)
        self._limits, self._quiet = limits, quiet
        self._replayed: float | None = None
        self._copied = 0.0
        self._measured: Evidence | None = None  # once the loop is over, or its limits are measured
        folder = os.environ.get("HEADRACE_RUN") if run is None else run
        self._recording = _Recording(Path(folder)) if folder and self._is_first_rank() else None

    def __repr__(self) -> str:
        return f"<Doctor {self._clock.steps} steps measured>"

    # -- the loop ------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._loader is not None:
            if self._loader.on_batch is not None:
                raise UsageError(
                    "another doctor watches this loader already", remedy="Leave its block first"
                )
            self._loader.on_batch = self._on_batch
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._loader is not None:
            self._loader.on_batch = None
        try:
            self._looks.end(self._clock.ended)
            if error is None and self._limits:
                self.measure_limits()
            self._measured = self.evidence()
            if self._recording is not None:
                self._recording.close(self.evidence(), self.verdict(), self._loader, error)
        except Exception as ours:  # must not hide the loop's result or error
            _log.warning("the doctor could not finish: %s", ours)
        over = error is None or isinstance(error, KeyboardInterrupt)
        if over and not self._quiet and self._is_first_rank():
            print(verdict_text(self.verdict(), self.evidence()))

    def on_batch(
        self, waited_s: float, samples: int, counts: Mapping[str, int] | None = None
    ) -> None:
        """A batch has arrived after a wait; called by the loader, or by a loop without one."""
        warm = self._clock.warm and self._clock.ended > 0
        self._clock.waited(waited_s)
        step = self._clock.end(samples)
        if self._clock.warm and not warm:
            self._looks.begin()
        self._looks.again(step.now)
        if self._recording is not None:
            self._recording.batch(step, samples, counts or {})
        self._clock.begin()  # what was done here is not the loop's

    def over(self, batches: Iterable[_T], samples: int) -> Iterator[_T]:
        """The batches of any other loader, each of so many samples, watched: `Doctor(None)`."""
        waiting = iter(batches)
        while True:
            started = perf_counter()
            try:
                batch = next(waiting)
            except StopIteration:
                return
            self.on_batch(perf_counter() - started, samples)
            yield batch
            del batch  # it is the consumer's alone

    def copied(self, seconds: float) -> None:
        """The loop has copied a batch to the device itself, and waited so long for that."""
        if self._clock.warm:
            self._copied += seconds

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """What is done in the block (validation, a checkpoint) is not part of a step."""
        with self._clock.paused():
            yield

    def headroom(self, step: Callable[[Any], Any], batch: Any = None, *, steps: int = 20) -> float:
        """Seconds of a step over a batch that is there already: what perfect data would give.

        `step` is run for real, so call this before training, or on a copy of the model. Without a
        batch the loader's next one is taken.
        """
        self._looks.end(self._clock.ended)
        with self.pause():
            if batch is None:
                batch = self._next_batch()
            self._replayed = _replay(step, batch, steps)
        return self._replayed

    def _next_batch(self) -> Any:
        """A batch that is not counted as one of the loop."""
        if self._loader is None:
            raise UsageError("there is no loader to take a batch from", remedy="Give batch=")
        hook, self._loader.on_batch = self._loader.on_batch, None
        try:
            return next(iter(self._outer))
        finally:
            self._loader.on_batch = hook

    # -- what follows --------------------------------------------------------------------------

    def evidence(self) -> Evidence:
        """Everything that is known so far."""
        if self._measured is not None:
            return replace(self._measured, replayed_s=self._replayed)
        clock = self._clock
        steps = clock.steps
        flops, peak = self._flops
        found = Evidence(
            batch_size=round(clock.samples / steps) if steps else None,
            steps=steps,
            step_s=(clock.seconds - clock.wait_s) / steps if steps else None,
            wait_s=clock.wait_s / steps if steps else None,
            replayed_s=self._replayed,
            flops_per_step=flops,
            peak_flops=peak,
        )
        found = replace(found, **self._looks.figures())
        if self._loader is not None:
            found = replace(found, **loader_figures(self._loader))
        if self._copied and steps:
            return replace(found, copy_s=self._copied / steps, copy_in_step=True)
        return replace(found, **_copy_figures(self._outer))

    def measure_limits(self) -> None:
        """Measure what machine and data allow, if the loop has waited: some seconds."""
        found = self.evidence()
        if self._loader is None or (found.waiting or 0.0) <= STARVED:
            return
        if give_verdict(found).kind in ("compute", "copy"):
            return
        try:
            self._measured = with_limits(found, self._loader)
        except (HeadraceError, OSError) as error:
            note = f"the limits could not be measured: {error}"
            self._measured = replace(found, notes=(*found.notes, note))

    def verdict(self) -> Verdict:
        """What limits the loop, by what is known so far."""
        return give_verdict(self.evidence())

    def _on_batch(self, batch: Batch, waited: float) -> None:
        try:
            if self._clock.ended == 0 and not self._is_first_rank():
                self._recording = None  # the rank may not be known before the first batch
            counts = (
                source_counts(batch.dataset, batch.names) if self._recording is not None else None
            )
            self._looks.batch(batch)
            self.on_batch(waited, len(batch), counts)
        except Exception as error:  # must not stop the training
            _log.warning("the doctor stops watching: %s", error)
            if self._loader is not None:
                self._loader.on_batch = None

    def _is_first_rank(self) -> bool:
        return self._loader is None or self._loader.rank == 0


def _watched(loader: Any) -> MixtureFeed | None:
    """The feed that batches come from."""
    if loader is None:
        return None
    try:
        return feed_of(loader)
    except UsageError as error:
        raise UsageError(
            f"the doctor does not know {type(loader).__name__}",
            remedy=f"{error.remedy}, or None and watch the batches of any other (over)",
        ) from None


def _replay(step: Callable[[Any], Any], batch: Any, steps: int) -> float:
    if steps < 1:
        raise UsageError(f"steps is {steps}", remedy="Give a number from 1 upwards")
    for _ in range(_REPLAY_WARMUP):
        finish_queued_work(step(batch))
    result = None
    started = perf_counter()
    for _ in range(steps):
        result = step(batch)
    finish_queued_work(result)
    return (perf_counter() - started) / steps


# -- looking at a loader while it works ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Look:
    now: float
    cpu_s: float  #: of all processes
    process_s: float  #: of this one
    thread_s: float  #: of the thread that looks: the loop's
    engine: EngineStatistics | None


class _Looks:
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
        """Look whether there is room for fewer batches now, if it is time."""
        if self._before is None or now < self._next or self._loader is None:
            return
        self._note_slots(self._loader.statistics().engine)
        spent = perf_counter() - now
        self._next = now + max(_LOOK_SECONDS, _PAUSE * spent)

    def end(self, batches: int) -> None:
        """The loop has paused or ended after so many batches; a second call changes nothing."""
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
        all_workers = after.engine.threads * elapsed
        per_sample = frames / images if images else 0.0
        earlier = {stage.name: stage.busy_s for stage in before.engine.stages}
        stages = {
            stage.name: (stage.busy_s - earlier.get(stage.name, 0.0)) * per_sample
            for stage in after.engine.stages
        }
        return {
            **found,
            "processes": len(after.engine.processes),
            "loop_work_s": sum(stages.values()) or None,
            "loop_read_s": stages.get("read") or None,
            "loop_stages": stages or None,
            "idle": min(1.0, (after.engine.waiting_s - before.engine.waiting_s) / all_workers),
            "slots": self._slots,
            "slots_wanted": SLOTS_WANTED,
            "slot_bytes": self._slot_bytes,
        }

    def _look(self) -> _Look:
        engine = self._loader.statistics().engine if self._loader is not None else None
        if engine is not None:
            self._note_slots(engine)
        cpu_s = tree_cpu_seconds(os.getpid())
        return _Look(perf_counter(), cpu_s, process_time(), thread_time(), engine)

    def _note_slots(self, engine: EngineStatistics) -> None:
        # The stream of training is the one that has delivered most.
        stream = max(engine.streams, key=lambda stream: stream.delivered, default=None)
        if stream is not None:
            self._slots = min(self._slots or stream.slot_limit, stream.slot_limit)


def loader_figures(loader: MixtureFeed) -> dict[str, Any]:
    """The settings of a loader, under the names that `Evidence` has for them."""
    options = loader.options
    return {
        "workers": loader.sizes.threads,
        "budget": loader.statistics().engine.budget.limit,
        "budget_given": options.memory is not None,
        "keep_free": options.keep_free_bytes,
        "image_size": options.size,
    }


def _copy_figures(loader: Any) -> dict[str, Any]:
    """How long a loader's copies to its device take, if it makes any."""
    copying = getattr(loader, "copying", None)
    found = copying() if copying is not None else None
    if found is None or not found.copies:
        return {}
    return {"copy_s": found.seconds / found.copies, "copy_wait_s": found.waited_s / found.copies}


def with_limits(
    evidence: Evidence, loader: MixtureFeed, watch: Callable[[str], None] = lambda _: None
) -> Evidence:
    """The evidence with the limits of the loader's next draws, on a core for each of its workers.

    Nothing is drawn from the loader, which has filled its slots by the time that counting begins.
    """
    workers = loader.sizes.threads
    watch("decode limit")
    decode = decode_limit(loader, seconds=_DECODE_SECONDS, processes=workers)
    watch("storage limit")
    storage = storage_limit(
        loader, seconds=_STORAGE_SECONDS, processes=workers, samples=_STORAGE_DRAWS
    )
    sources = source_costs(loader, watch=lambda name: watch(f"costs of {name}"))
    return replace(
        evidence,
        decode_limit=decode.samples_per_s,
        storage_limit=storage.samples_per_s,
        sources=sources,
    )


# -- recording -------------------------------------------------------------------------------------


class _Recording:
    """Writes `batch_times.jsonl` and `memory.jsonl` as the loop goes, and the rest at its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run = RunWriter(folder, batches=True, memory=True)
        self._tree = MemoryWatch(os.getpid())
        self._next = 0.0
        self._full = False

    def batch(self, step: Step, samples: int, counts: Mapping[str, int]) -> None:
        """A batch has arrived. A disk that is full ends the recording, not the training."""
        if self._full:
            return
        try:
            self._run.batch(step, samples=samples, counts=counts)
            now = perf_counter()
            if now >= self._next:
                held = self._tree.now()
                self._run.memory(
                    anonymous=held.anonymous, available=available_memory(), rss=held.rss
                )
                self._next = now + max(_LOOK_SECONDS, _PAUSE * (perf_counter() - now))
        except OSError:
            self._full = True

    def close(
        self,
        evidence: Evidence,
        verdict: Verdict,
        loader: MixtureFeed | None,
        error: BaseException | None,
    ) -> None:
        """Write doctor.json, and result.json unless the training program has written one."""
        with contextlib.suppress(OSError):
            self._run.damaged(loader.statistics().damaged if loader is not None else ())
            self._run.close()
        write_json(
            self._folder / DOCTOR, {"evidence": evidence.to_dict(), "verdict": verdict.to_dict()}
        )
        if not (self._folder / RESULT).exists():
            write_json(self._folder / RESULT, self._result(evidence, loader, error))

    def _result(
        self, evidence: Evidence, loader: MixtureFeed | None, error: BaseException | None
    ) -> dict[str, Any]:
        limit = None
        if evidence.decode_limit is not None and evidence.storage_limit is not None and loader:
            size = sum(source.share * source.bytes for source in evidence.sources)
            limit = {
                "decode_limit_samples_per_s": evidence.decode_limit,
                "storage_limit_samples_per_s": evidence.storage_limit,
                "storage_limit_bytes_per_s": evidence.storage_limit * size,
                "asked": loader.statistics().shares,
            }
        options = loader.options if loader is not None else None
        request = {
            "name": self._folder.resolve().name,
            "backend": "headrace" if loader is not None else "unknown",
            "job": {} if options is None else asdict(options),
            "settings": {"compute_ms": None},
            "machine": machine_facts(),
        }
        outcome = replace(
            outcome_of(error),
            peak_rss=self._run.peak_rss,
            peak_anonymous=self._run.peak_anonymous,
            min_available=self._run.min_available,
        )
        return summarise(self._folder, request, outcome, limit)
