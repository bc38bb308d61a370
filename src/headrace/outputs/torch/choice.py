"""Who decodes, the CPU or the GPU: tried in turns while training runs, then settled.

What counts is how fast the consumer gets on, whatever limits it: a step that computes for longer
than the CPUs decode gains nothing from a GPU that decodes as well, and would lose what that takes.
Batches that were begun before a turn are not counted to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

__all__ = ["Choice", "Who"]

Who: TypeAlias = Literal["cpu", "gpu"]

#: Turns of each: the first ones have a step that is still warming up.
_TURNS: tuple[Who, ...] = ("cpu", "gpu", "cpu", "gpu", "cpu", "gpu")
_COUNTED = 2  #: of the last turns of each
_SECONDS, _BATCHES = 0.5, 6  #: that a turn has at least
_CLEARLY = 1.03  #: a GPU that decodes must be worth it: its memory and time are the model's


@dataclass
class Choice:
    """Told of every batch; says who decodes the next ones."""

    ahead: int  #: batches that may have been begun before one is handed out
    settled: bool = False
    rates: dict[Who, float] = field(default_factory=dict)  #: samples/s of each, once settled
    _turn: int = 0
    _passed: int = 0
    _batches: int = 0
    _samples: int = 0
    _seconds: float = 0.0
    _seen: list[tuple[Who, int, float]] = field(default_factory=list)

    @property
    def who(self) -> Who:
        """Who is to decode now."""
        if not self.settled:
            return _TURNS[self._turn]
        return "gpu" if self.rates["gpu"] > _CLEARLY * self.rates["cpu"] else "cpu"

    def add(self, samples: int, seconds: float) -> bool:
        """A batch was handed out so long after the one before; whether that settled it."""
        if self.settled:
            return False
        self._passed += 1
        if self._passed <= self.ahead:
            return False
        self._batches += 1
        self._samples += samples
        self._seconds += seconds
        if self._batches < _BATCHES or self._seconds < _SECONDS:
            return False
        self._seen.append((self.who, self._samples, self._seconds))
        self._turn += 1
        self._passed = self._batches = self._samples = 0
        self._seconds = 0.0
        if self._turn < len(_TURNS):
            return False
        for who in ("cpu", "gpu"):
            mine = [(samples, s) for w, samples, s in self._seen if w == who][-_COUNTED:]
            self.rates[who] = sum(n for n, _ in mine) / sum(s for _, s in mine)
        self.settled = True
        return True

    def said(self) -> str:
        """What was chosen and why."""
        other: Who = "cpu" if self.who == "gpu" else "gpu"
        names = {"cpu": "the CPU", "gpu": "the GPU"}
        return (
            f"decode: {names[self.who]} decodes from here on ({self.rates[self.who]:,.0f} "
            f"samples/s, {self.rates[other]:,.0f} with {names[other]})"
        )
