"""What can be drawn: windows of an episode, the items of a source, windows of table rows.

The n-th draw of a source is item n mod L of pass n div L, in a keyed order of that pass. With all
pairs (`samples_per_episode` 0) an item is a pair (episode, t), and every pass has each once. With N
per episode an item is one of N places of an episode, and t is hashed from (pass, item), so each
pass sees other frames. Episodes without a valid start have no items.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError
from headrace.sampling.bijection import Ints, Words, hash_ints, permute, to_range

WindowMode: TypeAlias = Literal["endpoints", "single", "all", "stride", "fixed_n"]

_START_KEY = 0x7374617274  # "start": a hash that is independent of the order of the items


def frame_offsets(
    mode: WindowMode, k: int, stride: int | None = None, n: int | None = None
) -> tuple[int, ...]:
    """The frames of a window of k steps, relative to its start.

    `endpoints`: 0 and k. `single`: 0 alone, of a window of k = 0. `all`: 0 to k. `stride`: every
    `stride` steps, and always k. `fixed_n`: n frames evenly from 0 to k, rounded half to even;
    frames repeat where n exceeds k + 1.

    >>> frame_offsets("endpoints", 5), frame_offsets("stride", 5, stride=2)
    ((0, 5), (0, 2, 4, 5))
    """
    if mode not in get_args(WindowMode):
        raise UsageError(
            f"window mode is {mode!r}", remedy=f"Give one of {', '.join(get_args(WindowMode))}."
        )
    if mode != "single":
        _check_positive("offset k", k)
    for name, value, owner in (("stride", stride, "stride"), ("n", n, "fixed_n")):
        if mode == owner:
            _check_positive(f"{name} of window mode {mode!r}", value)
        elif value is not None:
            raise UsageError(
                f"{name} is {value!r}, but the window mode is {mode!r}",
                remedy=f"Drop {name}, or use the window mode {owner!r}.",
            )
    if mode == "single":
        return (0,)
    if mode == "endpoints":
        return 0, k
    if mode == "fixed_n":
        return tuple(int(frame) for frame in np.rint(np.linspace(0, k, n or 1)))
    return (*range(0, k, stride or 1), k)


def steps_from_seconds(seconds: float, hz: float | None) -> int:
    """An offset in seconds as steps at a control frequency: rounded, at least 1.

    >>> steps_from_seconds(0.6, hz=5)
    3
    """
    if not isinstance(seconds, (int, float)) or not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(
            f"offset in seconds is {seconds!r}", remedy="Give a number above 0, for example 0.6."
        )
    if hz is None:
        raise UsageError(
            f"an offset of {seconds} seconds needs the control frequency, which is not known",
            remedy="Give `hz` for this source, or `offset` in steps.",
        )
    if not (math.isfinite(hz) and hz > 0):
        raise UsageError(f"hz is {hz!r}", remedy="Give steps per second, for example 10.")
    return max(1, round(seconds * hz))


def valid_starts(steps: npt.ArrayLike, k: int) -> Ints:
    """For each episode length, the number of t with t + k inside the episode.

    >>> valid_starts([3, 5, 9], k=5).tolist()
    [0, 0, 4]
    """
    if k:
        _check_positive("offset k", k)
    return np.maximum(np.asarray(steps, np.int64) - k, 0)


def _check_positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise UsageError(f"{name} is {value!r}", remedy="Give a whole number from 1 upwards.")


class SourceItems:
    """The items of one source, from the number of valid starts of each of its episodes.

    >>> items = SourceItems(np.array([3, 0, 2]))
    >>> items.length
    5
    >>> episode, start = items.locate(np.arange(5), key=7)
    >>> sorted(zip(episode.tolist(), start.tolist()))
    [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]
    """

    def __init__(self, counts: npt.ArrayLike, samples_per_episode: int = 0) -> None:
        self.counts: Ints = np.asarray(counts, np.int64)
        self.samples_per_episode = samples_per_episode
        if self.counts.ndim != 1 or (self.counts.size and self.counts.min() < 0):
            raise UsageError(
                f"counts of valid starts have shape {self.counts.shape} and "
                f"{int((self.counts < 0).sum())} negative values",
                remedy="Give one number from 0 upwards for each episode.",
            )
        if samples_per_episode < 0:
            raise UsageError(
                f"samples_per_episode is {samples_per_episode}",
                remedy="Give 0 for all pairs, or a number of samples per episode and pass.",
            )
        self.length = int(self.items.sum())

    def __repr__(self) -> str:
        per = f", {self.samples_per_episode} per episode" if self.samples_per_episode else ""
        return f"SourceItems({len(self.counts)} episodes, {self.length} items{per})"

    @property
    def items(self) -> Ints:
        """Items of each episode in one pass."""
        if not self.samples_per_episode:
            return self.counts
        return np.where(self.counts > 0, self.samples_per_episode, 0)

    def locate(self, ordinals: Ints, key: int) -> tuple[Ints, Ints]:
        """Episode and start of the source's draws with these running numbers."""
        keys = np.array([key % (1 << 64)], np.uint64)
        table = ItemTable([self], keys)
        return table.locate(np.zeros(np.shape(ordinals), np.int32), ordinals)


class ItemTable:
    """The items of all sources of a mixture in one array, so that a batch is one lookup.

    >>> table = ItemTable([SourceItems([3]), SourceItems([2, 2])], keys=hash_ints(np.arange(2)))
    >>> episode, start = table.locate(np.array([0, 1], np.int32), np.array([0, 5]))
    """

    def __init__(self, sources: Sequence[SourceItems], keys: Words) -> None:
        self.lengths: Ints = np.array([source.length for source in sources], np.int64)
        self._keys = keys
        self._per_episode = np.array([source.samples_per_episode for source in sources], np.int64)
        episodes = np.array([len(source.counts) for source in sources], np.int64)
        self._first_episode = np.cumsum(episodes) - episodes
        self._first_item = np.cumsum(self.lengths) - self.lengths
        self._ends = np.cumsum(np.concatenate([source.items for source in sources]))
        self._counts = (  # needed only to hash a start
            np.concatenate([source.counts for source in sources])
            if self._per_episode.any()
            else None
        )

    def locate(
        self, source: npt.NDArray[np.int32], ordinals: Ints, salt: int = 0
    ) -> tuple[Ints, Ints]:
        """Episode within its source, and start, of each draw; another salt is another order."""
        length = self.lengths[source]
        turn, index = np.divmod(ordinals, length)
        key = hash_ints(self._keys[source], turn, salt)
        item = permute(index, length, key)
        flat = item + self._first_item[source]
        row = np.searchsorted(self._ends, flat, side="right")
        if self._counts is None:
            start = flat - self._items_before(row)
        else:
            hashed = to_range(hash_ints(key, _START_KEY, item), self._counts[row])
            all_pairs = self._per_episode[source] == 0
            start = np.where(all_pairs, flat - self._items_before(row), hashed)
        return row - self._first_episode[source], start

    def _items_before(self, row: Ints) -> Ints:
        before: Ints = np.where(row > 0, self._ends[row - 1], 0)
        return before


class RowWindows:
    """Windows of `size` table rows, one every `stride` rows; a rest at the end is not used.

    Windows lie within one file, or with `across_files` anywhere in the rows of all files. A file
    with fewer rows than a window has none; with `short` it has one, of all its rows, so that N > 0
    rows have max(1, (N - size) // stride + 1) windows.

    >>> windows = RowWindows([100, 0, 70], size=64, stride=32)
    >>> len(windows), [column.tolist() for column in windows.locate([0, 1, 2])]
    (3, [[0, 32, 100], [64, 64, 64]])
    >>> len(RowWindows([100, 0, 70], size=64, stride=32, across_files=True))
    4
    """

    def __init__(
        self,
        file_rows: Sequence[int] | Ints,
        size: int,
        stride: int,
        *,
        across_files: bool = False,
        short: bool = False,
    ) -> None:
        _check_positive("window", size)
        _check_positive("stride", stride)
        rows = np.asarray(file_rows, np.int64).reshape(-1)
        self.size, self.stride = int(size), int(stride)
        self.across_files = across_files
        self.rows = int(rows.sum())
        # Rows of each span that windows may lie in: one a file, or one in all.
        self._spans: Ints = np.array([self.rows], np.int64) if across_files else rows
        whole = (self._spans - self.size) // self.stride + 1
        least = np.where(self._spans > 0, 1, 0) if short else 0
        self.counts: Ints = np.where(self._spans >= self.size, whole, least)  #: of each span
        self._ends = np.cumsum(self.counts)
        self._first_row = np.cumsum(self._spans) - self._spans

    def __repr__(self) -> str:
        return f"RowWindows({len(self)} of {self.size} rows, stride {self.stride})"

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def too_short(self) -> npt.NDArray[Any]:
        """Numbers of the files that have rows, but fewer than a window."""
        return np.flatnonzero((self._spans > 0) & (self._spans < self.size))

    def locate(self, windows: npt.ArrayLike) -> tuple[Ints, Ints]:
        """First row, counted through all files, and number of rows of windows."""
        number = np.asarray(windows, np.int64)
        if number.size and (number.min() < 0 or number.max() >= len(self)):
            raise UsageError(
                f"window {number.max() if number.min() >= 0 else number.min()} is outside "
                f"{len(self)} windows",
                remedy="Windows are numbered from 0.",
            )
        span = np.searchsorted(self._ends, number, side="right")
        into = number - (self._ends[span] - self.counts[span])
        first = self._first_row[span] + into * self.stride
        return first, np.minimum(self.size, self._spans[span])

    def before(self, rows: npt.ArrayLike) -> Ints:
        """The number of windows that begin before each of these rows, counted through all files."""
        row = np.asarray(rows, np.int64)
        if not len(self._spans):
            return np.zeros(row.shape, np.int64)
        found = np.searchsorted(self._first_row, row, side="right") - 1
        span = np.clip(found, 0, len(self._spans) - 1)
        begun = -(-(row - self._first_row[span]) // self.stride)
        inside: Ints = np.clip(begun, 0, self.counts[span])
        return self._ends[span] - self.counts[span] + inside
