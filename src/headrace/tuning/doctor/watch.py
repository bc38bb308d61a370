"""The doctor in a training loop."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from headrace.errors import HeadraceError, UsageError
from headrace.loader import Batch
from headrace.loader.feed import MixtureFeed
from headrace.loader.loader import feed_of
from headrace.measure.evidence import STARVED, Evidence
from headrace.measure.machine import finish_queued_work
from headrace.measure.runs import StepClock, source_counts
from headrace.measure.verdict import Verdict, give_verdict, verdict_text
from headrace.tuning.doctor.limits import with_limits
from headrace.tuning.doctor.looking import Looks, copy_figures, loader_figures
from headrace.tuning.doctor.record import Recording

__all__ = ["Doctor"]

_T = TypeVar("_T")
_log = logging.getLogger("headrace")

_REPLAY_WARMUP = 3  # steps: compilers and allocators settle


class Doctor:
    """Watches a training loop and says what limits it.

    >>> import headrace as hr
    >>> with hr.Loader("oxe29.yaml", batch_size=64, image_size=256) as loader:  # doctest: +SKIP
    ...     with hr.Doctor(loader) as doctor:
    ...         for batch, _ in zip(loader, range(1000)):
    ...             train_step(batch)
    ...         doctor.headroom(train_step, batch)       # what the step could do with perfect data
    Compute-bound: data waits 0.4% of the step; a faster loader cannot help.

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
        self._looks = Looks(self._loader)
        self._limits, self._quiet = limits, quiet
        self._replayed: float | None = None
        self._copied = 0.0
        self._measured: Evidence | None = None  # once the loop is over, or its limits are measured
        folder = os.environ.get("HEADRACE_RUN") if run is None else run
        self._recording = Recording(Path(folder)) if folder and self._is_first_rank() else None

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
        except Exception as ours:  # the loop's result, or its error, is worth more than ours
            _log.warning("the doctor could not finish: %s", ours)
        over = error is None or isinstance(error, KeyboardInterrupt)
        if over and not self._quiet and self._is_first_rank():
            print(verdict_text(self.verdict(), self.evidence()))

    def on_batch(
        self, waited_s: float, samples: int, counts: Mapping[str, int] | None = None
    ) -> None:
        """A batch has arrived after a wait. Called by the loader, or by a loop without one."""
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
        """The batches of any other loader, of so many samples each, watched: `Doctor(None)`."""
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

    @contextmanager
    def pause(self) -> Iterator[None]:
        """What is done within (validation, a checkpoint) is no part of a step."""
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
            raise UsageError("there is no loader to take a batch from", remedy="Give a batch")
        hook, self._loader.on_batch = self._loader.on_batch, None
        try:
            return next(iter(self._outer))
        finally:
            self._loader.on_batch = hook

    # -- what comes of it ----------------------------------------------------------------------

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
        return replace(found, **copy_figures(self._outer))

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
                self._recording = None  # ranks may be settled as late as this
            counts = (
                source_counts(batch.dataset, batch.names) if self._recording is not None else None
            )
            self._looks.batch(batch)
            self.on_batch(waited, len(batch), counts)
        except Exception as error:  # never the training's problem
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
