"""Within a source: its n-th draw is item n mod L of pass n div L, in a keyed order of that pass.

All pairs (`samples_per_episode` 0): an item is a pair (episode, t), and every pass has each once.
N per episode: an item is one of N places of an episode, and t is hashed from (pass, item), so each
pass sees other frames. Episodes without a valid start have no items.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError
from headrace.sampling.bijection import permute
from headrace.sampling.hashed import Ints, Words, hash_ints, to_range

__all__ = ["ItemTable", "SourceItems"]

_START_KEY = 0x7374617274  # "start": a hash that is independent of the order of the items


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
                f"counts of valid starts of shape {self.counts.shape} with "
                f"{int((self.counts < 0).sum())} negative",
                remedy="Give one number from 0 upwards for each episode.",
            )
        if samples_per_episode < 0:
            raise UsageError(
                f"samples_per_episode is {samples_per_episode}",
                remedy="Give 0 for all of them, or how many per episode and pass.",
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
        """Episode of its source and start for each draw; another salt is another order."""
        length = self.lengths[source]
        turn, index = np.divmod(ordinals, length)
        key = hash_ints(self._keys[source], turn, salt)
        item = permute(index, length, key)
        flat = item + self._first_item[source]
        row = np.searchsorted(self._ends, flat, side="right")
        if self._counts is None:
            start = flat - self._begin(row)
        else:
            hashed = to_range(hash_ints(key, _START_KEY, item), self._counts[row])
            every = self._per_episode[source] == 0
            start = np.where(every, flat - self._begin(row), hashed)
        return row - self._first_episode[source], start

    def _begin(self, row: Ints) -> Ints:
        """Items before these episodes."""
        before: Ints = np.where(row > 0, self._ends[row - 1], 0)
        return before
