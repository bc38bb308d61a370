"""What still fits the time that a search may take. Pure: it is told the time."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import monotonic

__all__ = ["TimeBudget"]

_LOOK_BACK = 5  # runs
#: Runs of one configuration differ; one that was allowed to begin should also end in time.
_CAUTION = 1.1


class TimeBudget:
    """Seconds of a search, and what a run has cost so far.

    >>> clock = iter([0.0, 10.0])
    >>> budget = TimeBudget(100.0, expected_s=20.0, clock=lambda: next(clock))
    >>> budget.fits(4)
    True
    """

    def __init__(
        self, seconds: float, *, expected_s: float = 0.0, clock: Callable[[], float] = monotonic
    ) -> None:
        self._clock = clock
        self._end = clock() + seconds
        self._expected = expected_s
        self._costs: list[float] = []

    def __repr__(self) -> str:
        return f"<TimeBudget: {self.left_s:.0f} s left, {self.run_s:.0f} s a run>"

    @property
    def now(self) -> float:
        """The clock's time."""
        return self._clock()

    @property
    def left_s(self) -> float:
        """Until it ends."""
        return self._end - self._clock()

    @property
    def run_s(self) -> float:
        """What one run is expected to take: as long as the longest of the last few."""
        return self._of(1)

    def fits(self, runs: int) -> bool:
        """Whether so many runs would end in time."""
        return self._of(runs) <= self.left_s

    def _of(self, runs: int) -> float:
        """Seconds of so many runs: one of them as long as any was lately, the others as usual."""
        recent = self._costs[-_LOOK_BACK:] or [self._expected]
        return _CAUTION * (max(recent) + (runs - 1) * statistics.median(recent))

    def spent(self, seconds: float) -> None:
        """A run that passed took so long; one that failed says nothing of the others."""
        self._costs.append(seconds)
