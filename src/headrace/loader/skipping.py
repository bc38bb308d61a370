"""Samples that could not be had: how many may be replaced, and which were."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from headrace.errors import HeadraceError

__all__ = ["Errors", "Skipped"]

_KEPT_ERRORS = 100


@dataclass(frozen=True, slots=True)
class Skipped:
    """A sample that could not be had and was replaced."""

    draw: int
    error: str


@dataclass
class Errors:
    """What was skipped so far, and how much may be."""

    limit: int  #: samples that may be skipped before the run stops; 0: none
    count: int = 0
    first: list[Skipped] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def skip(self, draw: int, error: HeadraceError) -> None:
        """Count one more, or raise it."""
        with self._lock:
            self.count += 1
            if len(self.first) < _KEPT_ERRORS:
                self.first.append(Skipped(draw, str(error)))
            if self.count > self.limit:
                raise error
