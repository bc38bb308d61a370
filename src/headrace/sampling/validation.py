"""Validation: every item of every source once, in a fixed order in which no source waits.

The sources take turns, one item each, and those that are through drop out. However few batches
are looked at, every source is in them, and small sources as often as large ones: a mean per source
means something from the first batches on. Within a source the order is the keyed one of a first
pass, so a few batches already see many episodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError
from headrace.sampling.hashed import check_seed
from headrace.sampling.items import ItemTable, SourceItems
from headrace.sampling.sampler import Draws, replace, source_keys

__all__ = ["ValidationOrder"]


class ValidationOrder:
    """One pass over all sources as an array.

    >>> order = ValidationOrder([SourceItems([9, 4]), SourceItems([2])], ["a", "b"])
    >>> order.length, order.draw(np.arange(6)).source.tolist()
    (15, [0, 1, 0, 1, 0, 0])
    """

    def __init__(self, sources: Sequence[SourceItems], names: Sequence[str], seed: int = 0) -> None:
        if len(sources) != len(names):
            raise UsageError(
                f"{len(sources)} sources and {len(names)} names",
                remedy="Give one name for every source.",
            )
        self._table = ItemTable(sources, source_keys(check_seed(seed), names))
        lengths = self._table.lengths
        self.length = int(lengths.sum())
        # A phase ends when the next shortest sources are through: rounds before it, sources in it.
        self._rounds = np.unique(np.concatenate([[0], lengths]))[:-1]
        members = [np.flatnonzero(lengths > rounds) for rounds in self._rounds]
        self._width = np.array([len(phase) for phase in members], np.int64)
        self._members = np.concatenate([np.zeros(0, np.int64), *members]).astype(np.int32)
        self._first_member = np.cumsum(self._width) - self._width
        sizes = np.diff(self._rounds, append=lengths.max(initial=0)) * self._width
        self._begin = np.cumsum(sizes) - sizes

    def __repr__(self) -> str:
        return f"ValidationOrder({len(self._table.lengths)} sources, {self.length} items)"

    def draw(self, numbers: npt.ArrayLike) -> Draws:
        """The draws with these numbers, from 0 to `length` - 1."""
        number = np.asarray(numbers, np.int64)
        if number.size and (number.min() < 0 or number.max() >= self.length):
            raise UsageError(
                f"validation draw {number.max() if number.min() >= 0 else number.min()} is outside "
                f"a pass of {self.length}",
                remedy="Validation draws run from 0 to length - 1.",
            )
        phase = np.searchsorted(self._begin, number, side="right") - 1
        into, width = number - self._begin[phase], self._width[phase]
        source = self._members[self._first_member[phase] + into % width]
        ordinal = self._rounds[phase] + into // width
        episode, start = self._table.locate(source, ordinal)
        return Draws(number, source, ordinal, np.zeros_like(number), episode, start)

    def replacement(self, number: int, attempt: int) -> Draws:
        """As `Sampler.replacement`."""
        return replace(self._table, self.draw([number]), attempt)
