"""Axes: from values to places in the picture, with ticks at round numbers. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

__all__ = ["Axis", "Scale", "round_ticks"]

Scale = Literal["linear", "log", "nines"]


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values laid onto a stretch of the picture.

    `linear` and `log` as usual. `nines` is for shares: 0, 90%, 99%, 99.9% lie equally far apart, so
    that the slow tail has room.

    >>> Axis(0, 10, 100, 200).at(5)
    150.0
    """

    low: float
    high: float
    start: float
    end: float
    scale: Scale = "linear"

    @staticmethod
    def around(low: float, high: float, start: float, end: float, scale: Scale = "linear") -> Axis:
        """An axis that holds both values, with some width even where they are the same."""
        if scale == "log":
            low = max(low, 1e-9)
            high = max(high, low)
            if high / low < 1.5:
                low, high = low / 1.5, high * 1.5
        elif high - low <= max(abs(high), abs(low)) * 1e-9:
            low, high = (low - abs(low) / 2, high + abs(high) / 2) if high else (0.0, 1.0)
        return Axis(low, high, start, end, scale)

    def at(self, value: float) -> float:
        """Where a value lies; values outside lie on the edge."""
        low, high, value = (self._even(v) for v in (self.low, self.high, value))
        part = min(max((value - low) / (high - low), 0.0), 1.0)
        return self.start + part * (self.end - self.start)

    def ticks(self, words: Callable[[float], str], count: int = 6) -> list[tuple[float, str]]:
        """Round values inside the range, in words."""
        if self.scale == "nines":
            shares = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)
            values = [share for share in shares if share <= self.high]
        elif self.scale == "log":
            values = _log_ticks(self.low, self.high, count)
        else:
            values = round_ticks(self.low, self.high, count)
        return [(value, words(value)) for value in values]

    def _even(self, value: float) -> float:
        if self.scale == "log":
            return math.log10(max(value, 1e-12))
        if self.scale == "nines":
            return -math.log10(max(1 - value, 1e-9))
        return value


def round_ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` values between low and high in steps of 1, 2 or 5.

    >>> round_ticks(0, 1290, 5)
    [0.0, 500.0, 1000.0]
    """
    raw = (high - low) / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(number * step, digits) + 0.0 for number in range(first, last + 1)]


def _log_ticks(low: float, high: float, count: int) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    found: list[float] = []
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), range(1, 10)):
        values = [m * 10.0**e for e in range(first, last + 1) for m in steps]
        found = [v for v in values if low * 0.999 <= v <= high * 1.001]
        if len(found) >= min(count - 2, 4):
            break
    if len(found) < 2:  # hardly a factor of two: steps as on an even scale
        return round_ticks(low, high, count)
    stride = -(-len(found) // (count + 3))  # many decades: every second or third will do
    return found[::stride]
