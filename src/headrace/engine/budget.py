"""The memory budget: a hard limit on the bytes that are held for data in flight."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from headrace.errors import BudgetError

__all__ = ["Budget", "BudgetStatistics"]


@dataclass(frozen=True, slots=True)
class BudgetStatistics:
    """A budget at one moment."""

    limit: int  #: bytes that may be held
    held: int  #: bytes held now
    peak: int  #: most bytes held so far


class Budget:
    """Counts bytes and refuses what would pass the limit.

    >>> budget = Budget(100)
    >>> budget.charge(60, "a slot")
    >>> budget
    <Budget 60 of 100 bytes held, peak 60>
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = self._peak = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Budget {self._held:,} of {self._limit:,} bytes held, peak {self._peak:,}>"

    @property
    def free(self) -> int:
        """Bytes that may still be charged."""
        return self._limit - self._held

    def charge(self, size: int, what: str) -> None:
        """Hold `size` more bytes, or raise."""
        with self._lock:
            if self._held + size > self._limit:
                raise BudgetError(
                    f"{what} needs {size:,} bytes where {self._limit - self._held:,} of a budget "
                    f"of {self._limit:,} are free",
                    remedy="Raise the budget, or lower the batch size or the image size",
                )
            self._held += size
            self._peak = max(self._peak, self._held)

    def release(self, size: int) -> None:
        """Hold `size` bytes less."""
        with self._lock:
            self._held -= size

    def statistics(self) -> BudgetStatistics:
        """The figures now."""
        with self._lock:
            return BudgetStatistics(self._limit, self._held, self._peak)
