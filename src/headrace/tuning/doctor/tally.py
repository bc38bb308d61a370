"""Counting a loop's steps and waits from the moments at which batches arrive. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Tally"]


@dataclass(slots=True)
class Tally:
    """Steps and waits, without the warm-up.

    A step is what lies between a batch's arrival and the request for the next one, so the interval
    that ends with the first measured batch begins with the last one of the warm-up.
    """

    warmup: int  #: batches
    warmup_s: float  #: and seconds, whichever end later
    batches: int = 0
    measured: int = 0  #: of them
    samples: int = 0  #: in the measured ones
    wait_s: float = 0.0
    step_s: float = 0.0
    warm: bool = False  #: the warm-up is over
    _first: float | None = None
    _last: float = 0.0
    _paused: float = 0.0

    def add(self, now: float, waited: float, samples: int) -> float:
        """A batch arrived after a wait; how long the step before that took."""
        if self._first is None:
            self._first = now
            step = 0.0
        else:
            step = max(0.0, now - waited - self._last - self._paused)
        self.batches += 1
        self._last, self._paused = now, 0.0
        if self.warm:
            self.measured += 1
            self.samples += samples
            self.wait_s += waited
            self.step_s += step
        elif self.batches >= self.warmup and now - self._first >= self.warmup_s:
            self.warm = True
        return step

    def resume(self, now: float) -> None:
        """What happened since the batch arrived was not the loop's doing: count from here."""
        self._last = now

    def pause(self, seconds: float) -> None:
        """So much of the time since the last batch is no part of a step."""
        if self.batches:
            self._paused += seconds
