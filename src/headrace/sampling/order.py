"""A shuffle that keeps few groups open at a time, for storage that reads a group as a whole.

In every pass the groups come in a keyed order. Each group's items, in a keyed order of their own,
are cut into K parts. Step s of the pass takes part 0 of group s, part 1 of group s - 1, ... part
K - 1 of group s - K + 1, in a keyed order of all of them: every step opens one group and finishes
one. Group numbers wrap around, so the first steps of a pass have K groups too.

Every item comes once in a pass, and draw number i is computed without those before it: like the
exact shuffle, the sequence can be entered anywhere and divided among any number of hosts. The
trade: items that come together are from K of the groups, and an item stays within K steps of its
group's turn (`docs/decisions` has figures). With K groups or fewer it is a shuffle of everything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError
from headrace.sampling.bijection import Ints, check_seed, hash_ints, permute

_GROUPS, _PARTS, _STEP = 0x67726F757073, 0x7061727473, 0x73746570  # "groups", "parts", "step"
_KEPT_PASSES = 3  # a batch spans two passes, and a resume may look back


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """The layout of one pass."""

    key: npt.NDArray[np.uint64]
    order: Ints  #: groups in the order in which they come
    ends: Ints  #: [steps] items up to the end of each step
    part_ends: Ints  #: [steps, K] items of a step up to the end of each part


class LocalOrder:
    """The items of groups with these counts as one endless sequence, `opened` groups at a time.

    >>> order = LocalOrder([3, 2, 4], opened=2, seed=0)
    >>> turn, item = order.draw(np.arange(9))
    >>> sorted(item.tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """

    def __init__(self, counts: npt.ArrayLike, opened: int, seed: int) -> None:
        counts = np.asarray(counts, np.int64).reshape(-1)
        first = np.cumsum(counts) - counts
        self._counts: Ints = counts[counts > 0]
        self._first: Ints = first[counts > 0]
        self.length = int(counts.sum())
        if not self.length:
            raise UsageError("there are no items to shuffle", remedy="Give groups with items.")
        if opened < 1:
            raise UsageError(
                f"opened is {opened}", remedy="Give a number of groups from 1 upwards."
            )
        self.opened = min(opened, len(self._counts))
        self.seed = check_seed(seed)
        self._passes: dict[int, _Pass] = {}

    def __repr__(self) -> str:
        return f"LocalOrder({self.length} items, {self.opened} of {len(self._counts)} groups open)"

    def draw(self, numbers: npt.ArrayLike) -> tuple[Ints, Ints]:
        """Pass and item of each draw."""
        number = np.asarray(numbers, np.int64)
        if number.size and number.min() < 0:
            raise UsageError(
                f"draw number {number.min()} is negative", remedy="Draws are numbered from 0."
            )
        turn, index = np.divmod(number, self.length)
        item = np.empty_like(number)
        for one in np.unique(turn).tolist():
            here = turn == one
            item[here] = self._within(self._pass(one), index[here])
        return turn, item

    def _within(self, layout: _Pass, index: Ints) -> Ints:
        step = np.searchsorted(layout.ends, index, side="right")
        ends = layout.part_ends[step]
        size = ends[:, -1]
        into = index - (layout.ends[step] - size)
        mixed = permute(into, size, hash_ints(layout.key, _STEP, step))
        part = (ends <= mixed[:, None]).sum(axis=1)
        before = np.where(part > 0, ends[np.arange(len(part)), part - 1], 0)
        group = layout.order[(step - part) % len(self._counts)]
        count = self._counts[group]
        place = count * part // self.opened + (mixed - before)
        item: Ints = permute(place, count, hash_ints(layout.key, _PARTS, group))
        item += self._first[group]
        return item

    def _pass(self, turn: int) -> _Pass:
        kept = self._passes
        if turn not in kept:
            latest = list(kept.items())[1 - _KEPT_PASSES :]
            kept = {**dict(latest), turn: self._layout(turn)}
            self._passes = kept  # replaced, never changed: threads may be reading the old one
        return kept[turn]

    def _layout(self, turn: int) -> _Pass:
        key = hash_ints(self.seed, turn)
        groups, opened = len(self._counts), self.opened
        order = permute(np.arange(groups), groups, hash_ints(key, _GROUPS))
        cuts = self._counts[order][:, None] * np.arange(opened + 1) // opened
        sizes = np.diff(cuts, axis=1)  # of each part of each group, in the order of the groups
        steps = np.arange(groups)[:, None] - np.arange(opened)
        part_ends = np.cumsum(sizes[steps % groups, np.arange(opened)], axis=1)
        return _Pass(key, order, np.cumsum(part_ends[:, -1]), part_ends)
