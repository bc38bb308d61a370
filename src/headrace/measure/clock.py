"""The clock of a loop: how long its steps take, and how long they wait for data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import NamedTuple


class Step(NamedTuple):
    """One step, from the end of the one before to its own."""

    now: float  #: when it ended
    seconds: float  #: all of it, without pauses
    wait_s: float  #: of these, for data
    warmup: bool

    @property
    def step_s(self) -> float:
        return self.seconds - self.wait_s


class StepClock:
    """Counts the steps of a loop: how long they took, and how long they waited for data.

    >>> clock = StepClock(warmup=1)
    >>> for now, waited in ((10, 5), (12, 0.5), (15, 1.5)):
    ...     clock.waited(waited)
    ...     step = clock.end(samples=4, now=now)
    >>> clock.steps, clock.samples, clock.seconds, clock.wait_s
    (2, 8, 5.0, 2.0)

    `end` is called once a step, at the same place of every step. Without `begin` the first step is
    no longer than its wait. `waits` gives the seconds waited so far, where something counts them.
    """

    def __init__(
        self,
        *,
        warmup: int = 0,
        warmup_s: float = 0.0,
        waits: Callable[[], float] | None = None,
    ) -> None:
        self._warmup, self._warmup_s = warmup, warmup_s
        self._waits = waits
        self._seen = waits() if waits is not None else 0.0
        self._wait = self._paused = 0.0
        self._last: float | None = None  # the end of the step before
        self._first: float | None = None  # the end of the first step
        self._pause: float | None = None
        self.warm = warmup == 0 and warmup_s == 0  #: the warm-up is over
        self.ended = 0  #: steps, with those of the warm-up
        self.clear()

    def clear(self) -> None:
        self.steps = self.samples = 0  #: after the warm-up
        self.seconds = self.wait_s = 0.0

    def begin(self, now: float | None = None) -> None:
        """The next step begins here: what happened since the last one is not part of it."""
        self._last = perf_counter() if now is None else now
        self._wait = self._paused = 0.0
        if self._waits is not None:
            self._seen = self._waits()

    def waited(self, seconds: float) -> None:
        """So much of the current step was waiting for data."""
        self._wait += seconds

    def end(self, samples: int = 0, now: float | None = None) -> Step:
        now = perf_counter() if now is None else now
        if self._waits is not None:
            seen = self._waits()
            self._wait, self._seen = self._wait + seen - self._seen, seen
        wait, counted = self._wait, self.warm and self._last is not None
        since = 0.0 if self._last is None else now - self._last - self._paused
        step = Step(now, max(since, wait), wait, not counted)
        self._first = now if self._first is None else self._first
        self._last, self._wait, self._paused = now, 0.0, 0.0
        self.ended += 1
        if counted:
            self.steps += 1
            self.samples += samples
            self.seconds += step.seconds
            self.wait_s += wait
        elif self.ended >= self._warmup and now - self._first >= self._warmup_s:
            self.warm = True
        return step

    def pause(self) -> None:
        """What comes now (validation, a checkpoint) is not part of a step, until `resume`."""
        if self._pause is None:
            self._pause = perf_counter()

    def resume(self) -> None:
        if self._pause is not None:
            self.skip(perf_counter() - self._pause)
            self._pause = None

    def skip(self, seconds: float) -> None:
        """So much of the current step is not part of it."""
        if self._last is not None:
            self._paused += seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """`pause` and `resume` around a block; inside another pause it adds nothing."""
        outer = self._pause is None
        self.pause()
        try:
            yield
        finally:
            if outer:
                self.resume()
