"""Which measurements of a window are timed, and in which order they stand: the training modes.

40% of windows have all times, in order; 30% have none, shuffled; in 30% each row is timed with
probability 1/2, the timed ones in order, the others shuffled, and coin flips decide which of the
two comes next while both last. All chance comes from (seed, epoch, window): see `chance`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.recipes.network.prepare import SECOND
from headrace.sampling.bijection import Ints, Words, hash_ints, to_range

__all__ = ["ABSOLUTE_TIME", "LONG_DELTA", "NO_TIME", "SHORT_DELTA", "Arranged", "arrange", "chance"]

#: Kinds of time, as `templates` numbers them.
NO_TIME, ABSOLUTE_TIME, SHORT_DELTA, LONG_DELTA = range(4)

_ALL, _NONE = 4, 7  # of ten: below the first all are timed, below the second none
_COIN, _TIMED = np.uint64(1), np.uint64(2)  # bits of a row's word
_INDEX_BITS = np.uint64((1 << 16) - 1)  # of a row's key: no two are equal
_UNTIMED = np.uint64(1 << 63)
_1 = np.uint64(1)
_LONGEST_DELTA = np.uint64((1 << 32) - 1)


@dataclass(frozen=True, slots=True)
class Arranged:
    """The measurements of windows in the order they stand in, [windows, rows]."""

    row: Ints  #: number of the row among those of all windows
    kind: Ints  #: of time
    seconds: Words  #: since 1970, or since the timed measurement before


def chance(seed: int, epoch: Any, window: Any, rows: int) -> Words:
    """A word for the window and one for each of its rows: [windows, 1 + rows].

    The window's says the mode. Of a row's, the first bit is a coin, the second whether the row is
    timed, and those above the seventeenth are what rows are shuffled by.
    """
    epochs, windows = np.atleast_1d(epoch)[:, None], np.atleast_1d(window)[:, None]
    return hash_ints(seed, epochs, windows, np.arange(1 + rows)[None])


def arrange(words: Words, time: npt.NDArray[np.int64]) -> Arranged:
    """Order the rows of windows of times [windows, rows], in nanoseconds."""
    windows, rows = time.shape
    number = np.arange(rows)
    before = np.arange(0, windows * rows, rows)[:, None]  # rows of earlier windows
    mode = to_range(words[:, 0], 10)[:, None]
    words = words[:, 1:]
    mixed = mode >= _NONE
    timed = (mode < _ALL) | mixed & ((words & _TIMED) != 0)
    # Timed rows come first, by their time; then the others, by their words.
    shuffled = words >> _1 & ~_INDEX_BITS | _UNTIMED | number.astype(np.uint64)
    by_key = np.where(timed, _ranks(time), shuffled).argsort(axis=1)
    by_key += before
    count = timed.sum(axis=1, keepdims=True)
    times = time.reshape(-1)[by_key]
    seconds = np.empty((windows, rows), np.uint64)
    seconds[:, :1] = np.maximum(times[:, :1], 0) // SECOND
    apart = np.diff(times.view(np.uint64), axis=1) // np.uint64(SECOND)  # nonsense where untimed
    seconds[:, 1:] = np.minimum(apart, _LONGEST_DELTA)
    kind = np.where(seconds < 256, SHORT_DELTA, LONG_DELTA)
    kind[:, 0] = ABSOLUTE_TIME
    kind[number >= count] = NO_TIME
    if not mixed.any():
        return Arranged(by_key, kind, seconds)
    place = np.where(mixed, _interleaved(words, count), number) + before
    return Arranged(*(each.reshape(-1)[place] for each in (by_key, kind, seconds)))


def _ranks(time: npt.NDArray[np.int64]) -> Words:
    """Each row's rank by its time; rows of one time keep their order."""
    windows, rows = time.shape
    ranks = np.tile(np.arange(rows, dtype=np.uint64), (windows, 1))
    unsorted = np.flatnonzero((time[:, 1:] < time[:, :-1]).any(axis=1))
    if unsorted.size:
        order = time[unsorted].argsort(axis=1, kind="stable")
        within = np.empty_like(order)
        np.put_along_axis(within, order, np.arange(rows)[None], 1)
        ranks[unsorted] = within
    return ranks


def _interleaved(words: Words, timed: Ints) -> Ints:
    """Who stands at each place, where the first `timed` are one queue and the rest another."""
    rows = words.shape[1]
    coin = (words & _COIN).astype(np.int64)
    before = coin.cumsum(axis=1) - coin  # of the timed, as long as both queues last
    others = np.arange(rows) - before
    over = (before >= timed) | (others >= rows - timed)
    first = over.argmax(axis=1)[:, None]
    rest = np.take_along_axis(before, first, 1) < timed  # which queue is left then
    take = np.where(over, rest, coin != 0)
    taken = take.cumsum(axis=1)
    return np.where(take, taken - 1, timed + np.arange(rows) - taken)
